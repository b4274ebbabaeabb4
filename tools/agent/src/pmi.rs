//! A process manager for MPI programs: the server's side of PMI-1, through which the ranks of mpich
//! and related libraries get their rank numbers and exchange addresses.
//!
//! Lines of `key=value` words over TCP, as mpich's own process manager exchanges them with ranks
//! that it has given `PMI_PORT` and `PMI_ID`. The part of PMI-1 that MPI-1 to MPI-4 need without
//! dynamic processes is supported; dynamic processes and the name service are refused.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread;

use serde::{Deserialize, Serialize};
use tofu_sync::lock;

/// The name of the only key-value space.
const SPACE: &str = "tofu";
/// The longest line that a rank may send, in bytes.
const MAX_LINE: u64 = 64 << 10;
/// The longest key and value for ranks, in bytes.
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 1024;
/// All keys and values together, in bytes; a rank of mpich uses some hundred.
const MAX_SPACE: usize = 256 << 20;

/// The key whose value lists the ranks of each node.
const MAPPING: &str = "PMI_process_mapping";

/// A report about a rank to the program that has started it. As text it is a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Report {
    /// The rank has reached its process manager, and may abort the job until it finalizes MPI.
    Joined(u32),
    /// It has finalized MPI.
    Finalized(u32),
    /// It has called `MPI_Abort` with this code.
    Aborted(u32, i32),
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined(rank) => write!(f, "{rank} joined"),
            Self::Finalized(rank) => write!(f, "{rank} finalized"),
            Self::Aborted(rank, code) => write!(f, "{rank} aborted {code}"),
        }
    }
}

impl FromStr for Report {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let (rank, what) = line.split_once(' ').ok_or(())?;
        let rank = rank.parse().map_err(drop)?;
        match (what, what.strip_prefix("aborted ")) {
            ("joined", _) => Ok(Self::Joined(rank)),
            ("finalized", _) => Ok(Self::Finalized(rank)),
            (_, Some(code)) => code.parse().map(|code| Self::Aborted(rank, code)).map_err(drop),
            _ => Err(()),
        }
    }
}

struct Space {
    keys: HashMap<String, String>,
    /// Bytes of them.
    size: usize,
    /// The ranks that have reached the barrier.
    waiting: HashMap<u32, TcpStream>,
}

struct Server<R> {
    size: u32,
    space: Mutex<Space>,
    report: R,
}

/// Serves the ranks of one job of `size` ranks for ever. `mapping` says which of them share a node,
/// in PMI's notation, as in `(vector,(0,2,1))`: from node 0 on, two nodes with one rank each.
/// `report` is called with what happens to ranks.
///
/// # Errors
///
/// If no connection can be accepted any more.
pub fn serve<R>(listener: &TcpListener, size: u32, mapping: &str, report: R) -> io::Result<()>
where
    R: Fn(Report) + Send + Sync + 'static,
{
    let keys = HashMap::from([(MAPPING.to_owned(), mapping.to_owned())]);
    let space = Mutex::new(Space { keys, size: 0, waiting: HashMap::new() });
    let server = Arc::new(Server { size, space, report });
    for client in listener.incoming() {
        let (client, server) = (client?, Arc::clone(&server));
        thread::Builder::new().spawn(move || {
            if let Err(error) = server.attend(client) {
                log::warn!("a rank cannot be served: {error}");
            }
        })?;
    }
    Ok(())
}

/// The words of a line. A value may hold `=` but no blank.
fn words(line: &str) -> HashMap<&str, &str> {
    line.split_ascii_whitespace().filter_map(|word| word.split_once('=')).collect()
}

impl<R: Fn(Report)> Server<R> {
    fn attend(&self, mut client: TcpStream) -> io::Result<()> {
        // Lines are short, and the other side waits for each.
        client.set_nodelay(true)?;
        let mut lines = BufReader::new(client.try_clone()?);
        let mut rank = None;
        let mut line = String::new();
        loop {
            line.clear();
            if (&mut lines).take(MAX_LINE).read_line(&mut line)? == 0 {
                break;
            }
            if !line.ends_with('\n') {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
            }
            let words = words(&line);
            let command = words.get("cmd").or(words.get("mcmd")).copied().unwrap_or_default();
            if command == "initack" {
                let id = words.get("pmiid").and_then(|id| id.parse().ok());
                let Some(id) = id.filter(|id| *id < self.size) else {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "no such rank"));
                };
                rank = Some(id);
                (self.report)(Report::Joined(id));
                let size = self.size;
                let answer = format!(
                    "cmd=initack\ncmd=set size={size}\ncmd=set rank={id}\ncmd=set debug=0\n"
                );
                client.write_all(answer.as_bytes())?;
                continue;
            }
            let Some(rank) = rank else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a rank without a number"));
            };
            if let Some(answer) = self.answer(rank, command, &words, &client)? {
                client.write_all(answer.as_bytes())?;
            }
            match command {
                "finalize" => break,
                "abort" => {
                    // What follows is the rest of its message, which may have several lines. How
                    // the rank ends does not matter any more.
                    let _ = io::copy(&mut lines, &mut io::sink());
                    break;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The answer to a line; `None` if it comes later, or never.
    fn answer(
        &self,
        rank: u32,
        command: &str,
        words: &HashMap<&str, &str>,
        client: &TcpStream,
    ) -> io::Result<Option<String>> {
        let key = || words.get("key").copied().unwrap_or_default();
        let known = words.get("kvsname").is_none_or(|name| *name == SPACE);
        Ok(Some(match command {
            "init" => {
                let ours = words.get("pmi_version") == Some(&"1");
                let rc = if ours { 0 } else { -1 };
                format!("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc={rc}\n")
            }
            "get_maxes" => {
                format!("cmd=maxes kvsname_max=256 keylen_max={MAX_KEY} vallen_max={MAX_VALUE}\n")
            }
            "get_appnum" => "cmd=appnum rc=0 appnum=0\n".into(),
            "get_my_kvsname" => format!("cmd=my_kvsname rc=0 kvsname={SPACE}\n"),
            "get_universe_size" => format!("cmd=universe_size rc=0 size={}\n", self.size),
            "put" => match words.get("value") {
                Some(value) if known && self.put(key(), value) => {
                    "cmd=put_result rc=0 msg=success\n".into()
                }
                _ => "cmd=put_result rc=-1 msg=refused\n".into(),
            },
            "get" => match lock(&self.space).keys.get(key()).filter(|_| known) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}\n"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown\n".into(),
            },
            "barrier_in" => {
                self.barrier(rank, client)?;
                return Ok(None);
            }
            "abort" => {
                let code = words.get("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
                (self.report)(Report::Aborted(rank, code));
                return Ok(None);
            }
            "finalize" => {
                (self.report)(Report::Finalized(rank));
                "cmd=finalize_ack rc=0\n".into()
            }
            "spawn" => "cmd=spawn_result rc=-1 msg=not_supported\n".into(),
            "publish_name" => "cmd=publish_result rc=-1 msg=not_supported\n".into(),
            "unpublish_name" => "cmd=unpublish_result rc=-1 msg=not_supported\n".into(),
            "lookup_name" => "cmd=lookup_result rc=-1 msg=not_supported\n".into(),
            other => {
                log::warn!("unknown request {other:?} from rank {rank}");
                return Ok(None);
            }
        }))
    }

    fn put(&self, key: &str, value: &str) -> bool {
        let mut space = lock(&self.space);
        let size = space.size + key.len() + value.len();
        if size > MAX_SPACE || key == MAPPING {
            return false;
        }
        space.size = size;
        space.keys.insert(key.to_owned(), value.to_owned());
        true
    }

    /// Releases all ranks when the last one has arrived.
    fn barrier(&self, rank: u32, client: &TcpStream) -> io::Result<()> {
        let mut space = lock(&self.space);
        space.waiting.insert(rank, client.try_clone()?);
        if space.waiting.len() == self.size as usize {
            for (rank, mut client) in space.waiting.drain() {
                if let Err(error) = client.write_all(b"cmd=barrier_out rc=0\n") {
                    // The process that started it will notice its end.
                    log::debug!("rank {rank} has gone: {error}");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Shutdown};
    use std::sync::mpsc;

    struct Client {
        out: TcpStream,
        lines: BufReader<TcpStream>,
    }

    impl Client {
        fn new(port: u16, rank: &str) -> Self {
            let out = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let lines = BufReader::new(out.try_clone().unwrap());
            let mut client = Self { out, lines };
            client.say(&format!("cmd=initack pmiid={rank}"));
            client
        }

        fn say(&mut self, line: &str) {
            self.out.write_all(format!("{line}\n").as_bytes()).unwrap();
        }

        /// The next line, or nothing at the end.
        fn hear(&mut self) -> String {
            let mut line = String::new();
            self.lines.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        }

        fn ask(&mut self, line: &str) -> String {
            self.say(line);
            self.hear()
        }
    }

    fn start(size: u32) -> (u16, mpsc::Receiver<Report>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, reports) = mpsc::channel();
        thread::spawn(move || {
            serve(&listener, size, "(vector,(0,1,2))", move |report| sender.send(report).unwrap())
        });
        (port, reports)
    }

    #[test]
    fn ranks_exchange_values_behind_a_barrier() {
        let (port, reports) = start(2);
        let mut ranks = [Client::new(port, "0"), Client::new(port, "1")];
        for (number, rank) in ranks.iter_mut().enumerate() {
            let greeting: Vec<_> = (0..4).map(|_| rank.hear()).collect();
            let own = format!("cmd=set rank={number}");
            assert_eq!(greeting, ["cmd=initack", "cmd=set size=2", &own, "cmd=set debug=0"]);
            assert!(matches!(reports.recv(), Ok(Report::Joined(_))));
            assert_eq!(
                rank.ask("cmd=init pmi_version=1 pmi_subversion=1"),
                "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            );
            assert_eq!(rank.ask("cmd=get_my_kvsname"), "cmd=my_kvsname rc=0 kvsname=tofu");
            let mapping = rank.ask("cmd=get kvsname=tofu key=PMI_process_mapping");
            assert_eq!(mapping, "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))");
            let put = format!("cmd=put kvsname=tofu key=card-{number} value=at#{number}=x");
            assert_eq!(rank.ask(&put), "cmd=put_result rc=0 msg=success");
        }
        for round in 0..2 {
            ranks.iter_mut().for_each(|rank| rank.say("cmd=barrier_in"));
            for rank in &mut ranks {
                assert_eq!(rank.hear(), "cmd=barrier_out rc=0", "{round}");
            }
        }
        let got = ranks[0].ask("cmd=get kvsname=tofu key=card-1");
        assert_eq!(got, "cmd=get_result rc=0 msg=success value=at#1=x");
        assert!(ranks[0].ask("cmd=get kvsname=tofu key=none").contains(" rc=-1 "));
        assert!(ranks[0].ask("cmd=get kvsname=other key=card-1").contains(" rc=-1 "));
        assert!(ranks[1].ask("mcmd=spawn").contains(" rc=-1 "));
        // The lines of its message are no requests.
        ranks[1].say("cmd=abort exitcode=7 message=Fatal error:\n\ncmd=put key=late value=1");
        assert_eq!(reports.recv().unwrap(), Report::Aborted(1, 7));
        ranks[1].say("cmd=get key=card-0");
        ranks[1].out.shutdown(Shutdown::Write).unwrap();
        assert_eq!(ranks[1].hear(), "");
        assert!(ranks[0].ask("cmd=get kvsname=tofu key=late").contains(" rc=-1 "));
        assert_eq!(ranks[0].ask("cmd=finalize"), "cmd=finalize_ack rc=0");
        assert_eq!(reports.recv().unwrap(), Report::Finalized(0));
        assert_eq!(ranks[0].hear(), "");
    }

    #[test]
    fn reports_are_lines() {
        for report in [Report::Joined(3), Report::Finalized(0), Report::Aborted(383, -1)] {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        for line in ["", "3", "3 7", "x joined", "3 aborted", "3 aborted x", "-1 joined"] {
            assert_eq!(line.parse::<Report>(), Err(()), "{line}");
        }
    }

    #[test]
    fn strangers_are_refused_and_ranks_served() {
        let (port, _reports) = start(1);
        assert_eq!(Client::new(port, "1").hear(), "");
        assert_eq!(Client::new(port, "x").hear(), "");
        let mut nameless = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        nameless.write_all(b"cmd=get key=x\n").unwrap();
        assert_eq!(nameless.read(&mut [0]).unwrap(), 0);
        let mut endless = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        // The connection may be closed before it has taken everything.
        let _ = endless.write_all(&vec![b'x'; MAX_LINE as usize + 1]);
        assert!(!matches!(endless.read(&mut [0]), Ok(1)));
        let mut rank = Client::new(port, "0");
        assert_eq!(rank.hear(), "cmd=initack");
        (0..3).for_each(|_| assert!(rank.hear().starts_with("cmd=set ")));
        rank.say("cmd=barrier_in");
        assert_eq!(rank.hear(), "cmd=barrier_out rc=0");
    }
}
