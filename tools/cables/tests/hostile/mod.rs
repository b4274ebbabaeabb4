//! A shard that has the right certificate, sends a valid greeting, and then sends anything.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tofu_cables::Hello;

/// Pseudorandom numbers, the same in every run (Knuth's MMIX).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

pub(crate) struct Hostile(StreamOwned<ClientConnection, TcpStream>);

impl Hostile {
    /// Connects to shard 0 as the shard with these files.
    pub(crate) fn connect(dir: &Path, own: &Hello) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(dir.join("authority.pem")).unwrap()).unwrap();
        let files = dir.join(format!("part-{}", own.shard));
        let certificate = CertificateDer::from_pem_file(files.join("certificate.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(files.join("key.pem")).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        let name = "part-0.tofu.invalid".try_into().unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let addresses = std::fs::read_to_string(dir.join("parts.toml")).unwrap();
        let socket = TcpStream::connect(addresses.split('"').nth(1).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(StreamOwned::new(tls, socket))
    }

    /// Sends a frame. Returns false if the other end has closed the connection.
    pub(crate) fn send(&mut self, kind: u8, body: &[u8]) -> bool {
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.push(kind);
        frame.extend(body);
        self.write(&frame)
    }

    fn write(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).and_then(|()| self.0.flush()).is_ok()
    }

    fn say(&mut self, what: &Value) -> bool {
        self.send(0, what.to_string().as_bytes())
    }

    /// Receives the next JSON message of the other end.
    fn hear(&mut self) -> Option<Value> {
        loop {
            let mut header = [0; 5];
            self.0.read_exact(&mut header).ok()?;
            let mut body = vec![0; u32::from_le_bytes(*header.first_chunk().unwrap()) as usize];
            self.0.read_exact(&mut body).ok()?;
            if header[4] == 0 {
                return serde_json::from_slice(&body).ok();
            }
        }
    }

    /// Sends a valid greeting. Returns whether the other end accepts it.
    pub(crate) fn greet(&mut self, own: &Hello) -> bool {
        self.say(&json!({ "Hello": own }))
            && self.hear().is_some_and(|said| said.get("Hello").is_some())
            && self.say(&json!("Welcome"))
            && self.hear() == Some(json!("Welcome"))
    }

    /// Waits until the other end has read everything or has closed the connection. Dropping the
    /// connection instead may lose data that the other end has not read yet.
    pub(crate) fn finish(mut self) {
        let _ = self.0.sock.shutdown(Shutdown::Write);
        let _ = std::io::copy(&mut self.0.sock, &mut std::io::sink());
    }

    /// Sends a random frame. Returns whether the connection still exists, as far as is known.
    pub(crate) fn torment(&mut self, random: &mut Random) -> bool {
        match random.below(12) {
            0 => self.say(&json!("Here")),
            1 => self.say(&json!({ "Ended": { "failed": random.below(5) } })),
            2 => self.say(&json!({ "Ended": { "failed": -1 } })),
            3 => self.send(0, &random.bytes(60)),
            // Messages of the machine: their kind, and random bytes.
            4..=6 => {
                let mut message = vec![random.below(4) as u8];
                message.extend(random.bytes(300));
                self.send(1, &message)
            }
            7 => self.send(2, &random.bytes(10)),
            // Frames of streams: open streams, others, and more data than the window holds.
            8 | 9 => {
                let mut body = (random.below(3) as u32).to_le_bytes().to_vec();
                body.push(random.below(6) as u8 | (random.below(2) as u8) << 7);
                let most = if random.below(4) == 0 { 32 << 10 } else { 12 };
                body.extend(random.bytes(most));
                (0..1 + random.below(20)).all(|_| self.send(3, &body))
            }
            10 => {
                let (hold, most) = (random.below(3) as u8, random.below(3) as usize);
                self.send(4, &vec![hold; most])
            }
            // Occasionally bytes that are not a frame.
            _ if random.below(8) == 0 => {
                let bytes = random.bytes(100);
                self.write(&bytes)
            }
            _ => self.send(random.below(256) as u8, &random.bytes(20)),
        }
    }
}
