//! The network interface on the host's side of a gateway.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, bail};
use ipnet::Ipv4Net;
use tofu_abi::Coords;
use tofu_gateway::{Config, Tap, addr, machine_network};

/// Longest name of an interface, in bytes (linux/if.h).
const NAME_MAX: usize = 15;
/// The bit of CAP_NET_ADMIN in a set of capabilities.
const CAP_NET_ADMIN: u32 = 12;
/// A route with a prefix of at most this many bits covers the addresses of all machine numbers, so
/// choosing another number does not avoid it.
const ALL_MACHINES: u8 = 10;

/// Returns true if this process has CAP_NET_ADMIN and the kernel has TAP interfaces.
pub(super) fn may_make_interfaces() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    set >> CAP_NET_ADMIN & 1 == 1 && Path::new("/dev/net/tun").exists()
}

/// Makes the interface of the machine `name`, with the addresses of the node `at`.
pub(super) fn interface(name: &str, config: &Config, at: Coords) -> anyhow::Result<Tap> {
    let network = machine_network(config.machine, &config.shape);
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    check_routes(network, config.machine, &routes)?;
    let name: String = name.chars().take(NAME_MAX).collect();
    let max_frame = usize::from(config.mtu) + 14;
    let without = "; --tap off goes without a network interface of the host";
    let tap = Tap::new(&name, max_frame).map_err(|error| anyhow::anyhow!("{error}{without}"))?;
    let mac = addr::mac(at).map(|byte| format!("{byte:02x}")).join(":");
    let v4 = Ipv4Addr::from(addr::ipv4(config.machine, at));
    let v6 = Ipv6Addr::from(addr::ipv6(config.machine, at));
    let mtu = config.mtu.to_string();
    ip(&["link", "set", "dev", &name, "address", &mac, "mtu", &mtu])?;
    ip(&["addr", "add", &format!("{v4}/{}", network.prefix_len()), "dev", &name])?;
    ip(&["link", "set", "dev", &name, "up"])?;
    // The host may lack IPv6.
    if Path::new("/proc/sys/net/ipv6").exists() {
        let v6 = format!("{v6}/{}", addr::IPV6_PREFIX);
        let added = ip(&["-6", "addr", "add", &v6, "dev", &name, "nodad"]);
        if let Err(error) = added {
            log::warn!("gateway: no IPv6: {error:#}");
        }
    }
    Ok(tap)
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    run("ip", args, "iproute2")
}

/// Runs a program of the host that must print nothing.
pub(super) fn run(program: &str, args: &[&str], package: &str) -> anyhow::Result<()> {
    let output = Command::new(program).args(args).output();
    let output =
        output.with_context(|| format!("cannot run {program}, of the package {package}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("it did not say why").trim().to_owned();
        bail!("{program} {}: {said}", args.join(" "));
    }
    Ok(())
}

/// A route of the host.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    to: Ipv4Net,
    interface: String,
}

/// Parses text like that of /proc/net/route. Leaves out default routes and those of interfaces that
/// are down.
fn routes(text: &str) -> impl Iterator<Item = Route> + '_ {
    const UP: u32 = 1;
    text.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let word = |at: usize| words.get(at).copied();
        let number = |at: usize| u32::from_str_radix(word(at)?, 16).ok();
        let address = |at: usize| Some(Ipv4Addr::from(number(at)?.to_ne_bytes()));
        let to = Ipv4Net::with_netmask(address(1)?, address(7)?).ok()?;
        let wanted = to.prefix_len() > 0 && number(3)? & UP != 0;
        wanted.then(|| Route { to, interface: word(0).unwrap_or_default().to_owned() })
    })
}

/// Returns whether two networks have addresses in common.
fn overlap(a: &Ipv4Net, b: &Ipv4Net) -> bool {
    a.contains(b) || b.contains(a)
}

/// Refuses addresses that the host already routes elsewhere.
fn check_routes(ours: Ipv4Net, machine: u8, text: &str) -> anyhow::Result<()> {
    let Some(Route { to, interface }) = routes(text).find(|route| overlap(&route.to, &ours)) else {
        return Ok(());
    };
    if to.prefix_len() <= ALL_MACHINES {
        // The route covers all machines' addresses. Only this machine's are taken from it.
        log::warn!(
            "gateway: {ours}, this machine's addresses, were reached by {to} of {interface} so far"
        );
        return Ok(());
    }
    let other = (machine + 1) % 8;
    bail!(
        "the machine's addresses {ours} collide with the route {to} of {interface}; give it \
         another number, as with --ip-number {other}, or --tap off"
    )
}

/// Returns the first name server of this host that other hosts can reach as well.
pub(crate) fn resolver() -> Option<Ipv4Addr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    name_servers(&text).find(|server| !server.is_loopback())
}

fn name_servers(text: &str) -> impl Iterator<Item = Ipv4Addr> + '_ {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let server = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        Ipv4Addr::from_str(server).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n";

    fn check(ours: &str, routes: &str) -> Result<(), String> {
        let ours = ours.parse().unwrap();
        check_routes(ours, 0, &format!("{HEAD}{routes}")).map_err(|error| error.to_string())
    }

    #[test]
    fn routes_of_the_host_are_left_alone() {
        // default, 172.17.0.0/16, 10.0.0.16/28, 10.0.0.0/8
        let default = "eth0 00000000 010011AC 0003 0 0 0 00000000 0 0 0\n";
        let other = "eth0 000011AC 00000000 0001 0 0 0 0000FFFF 0 0 0\n";
        let inside = "vpn0 1000000A 00000000 0001 0 0 0 F0FFFFFF 0 0 0\n";
        let around = "vpn0 0000000A 00000000 0001 0 0 0 000000FF 0 0 0\n";
        assert_eq!(check("10.0.0.0/26", &format!("{default}{other}")), Ok(()));
        assert_eq!(check("10.0.0.0/26", around), Ok(()));
        assert_eq!(check("10.32.0.0/26", inside), Ok(()));
        let error = check("10.0.0.0/26", &format!("{default}{inside}")).unwrap_err();
        assert_eq!(
            error,
            "the machine's addresses 10.0.0.0/26 collide with the route 10.0.0.16/28 of vpn0; give \
             it another number, as with --ip-number 1, or --tap off"
        );
        // A route that is down, and a malformed line.
        assert_eq!(check("10.0.0.0/26", "vpn0 1000000A 0 0000 0 0 0 F0FFFFFF\nvpn0 10\n"), Ok(()));
    }

    #[test]
    fn name_servers_are_found() {
        let text = "# by hand\nsearch example.org\nnameserver ::1\nnameserver 127.0.0.53\n\
                    nameserver 192.0.2.1\noptions nameserver\n";
        let found: Vec<_> = name_servers(text).collect();
        assert_eq!(found, [Ipv4Addr::new(127, 0, 0, 53), Ipv4Addr::new(192, 0, 2, 1)]);
    }
}
