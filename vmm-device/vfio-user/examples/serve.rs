//! Serves the nodes of a small machine, each on its own socket, to QEMU or Cloud Hypervisor:
//!
//! ```text
//! cargo run -p tofu-vfio-user --example serve -- FOLDER [--polled]
//! qemu-system-x86_64 -M q35,memory-backend=m -object memory-backend-memfd,id=m,size=1G,share=on \
//!   -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"FOLDER/0"}}' ...
//! ```
//!
//! Ends when its standard input does, or at "quit"; "state" shows the nodes.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;

use tofu_abi::topology::Shape;
use tofu_abi::{CqId, TniId};
use tofu_machine::{Doorbells, Machine, MachineConfig};
use tofu_vfio_user::{Backing, ClientMemory, ClientPages, Limits, Server, bind_socket};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let mut args = std::env::args_os().skip(1);
    let folder = PathBuf::from(args.next().ok_or("usage: serve FOLDER [--polled]")?);
    let polled = args.next().is_some_and(|arg| arg == "--polled");
    let shape: Shape = "1x1x1x2x1x1".parse()?;
    let doorbells = if polled { Doorbells::Polled } else { Doorbells::Trapped };
    let machine = Machine::new(MachineConfig { doorbells, ..MachineConfig::new(shape) })?;
    let mut served = Vec::new();
    for (index, coords) in shape.iter().enumerate() {
        let memory = Arc::new(ClientMemory::new(Backing::Sealed, Limits::DEFAULT));
        let pages = ClientPages::new()?;
        let server = Server::new(&machine, coords, Arc::clone(&memory), Some(pages))?;
        let server = Arc::new(server);
        let socket = bind_socket(&folder.join(index.to_string()))?;
        println!("node {coords}: {}", socket.path().display());
        let (listener, runner) = (socket.listener()?, Arc::clone(&server));
        let thread = std::thread::spawn(move || runner.run(listener));
        served.push((server, memory, socket, thread));
    }
    machine.start()?;
    for line in std::io::stdin().lock().lines() {
        match line?.trim() {
            "quit" => break,
            _ => {
                for (server, memory, ..) in &served {
                    let node = server.node().expect("a node of Tofu");
                    let enabled = TniId::ALL
                        .into_iter()
                        .flat_map(|tni| CqId::ALL.map(|cq| (tni, cq)))
                        .filter(|&(tni, cq)| node.icc().queue_is_enabled(tni, cq.into()))
                        .count();
                    println!(
                        "node {}: {} ranges, {enabled} queues, bus master {}, MSI-X {}",
                        node.coords(),
                        memory.mapped_ranges(),
                        node.endpoint().bus_master(),
                        node.endpoint().msix().is_some_and(|msix| msix.enabled()),
                    );
                }
            }
        }
    }
    for (server, _, socket, thread) in served {
        server.stop();
        thread.join().map_err(|_| "a server has panicked")??;
        drop(socket);
    }
    Ok(())
}
