//! A folder with addresses and certificates, which say which process is which shard.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::{Deserialize, Serialize};
use tofu_fabric::{ShardId, Shards};

/// The file with the addresses.
const ADDRESSES: &str = "parts.toml";
const AUTHORITY: &str = "authority.pem";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Addresses {
    /// The addresses of the shards, `HOST:PORT`.
    #[serde(rename = "parts")]
    shards: Vec<String>,
}

/// The name in the certificate of a shard. It is not a host name.
fn name_of(shard: ShardId) -> String {
    format!("part-{shard}.tofu.invalid")
}

/// The same name for TLS.
pub(crate) fn server_name(shard: ShardId) -> anyhow::Result<ServerName<'static>> {
    Ok(ServerName::try_from(name_of(shard))?)
}

/// The folder of a shard's own files.
fn folder(dir: &Path, shard: ShardId) -> PathBuf {
    dir.join(format!("part-{shard}"))
}

/// Creates a folder for a machine whose shards listen at these addresses. It contains the
/// addresses, and for each shard a key and a certificate. The authority that signs these is created
/// for it, and its key is not kept.
///
/// # Errors
///
/// If the folder already exists or cannot be created, or an address is invalid.
pub fn init(dir: &Path, addresses: &[String]) -> anyhow::Result<()> {
    ensure!(!addresses.is_empty(), "a machine has at least one shard; give HOST:PORT for each");
    ensure!(
        addresses.len() <= Shards::MOST as usize,
        "{} addresses: a machine has {} shards at most",
        addresses.len(),
        Shards::MOST
    );
    for address in addresses {
        check(address)?;
    }
    if let Some(twice) = addresses.iter().enumerate().find(|(n, a)| addresses[..*n].contains(a)) {
        bail!("{}: two shards cannot listen at one address", twice.1);
    }
    let cannot = || format!("cannot make {}", dir.display());
    ensure!(!dir.exists(), "{} is there already; remove it, or give another --dir", dir.display());
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    authority.distinguished_name.push(DnType::CommonName, "parts of a Tofu machine");
    let key = KeyPair::generate()?;
    let signed = authority.self_signed(&key)?;
    let issuer = Issuer::new(authority, key);
    DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(cannot)?;
    write(&dir.join(AUTHORITY), signed.pem().as_bytes())?;
    let list = Addresses { shards: addresses.to_vec() };
    write(&dir.join(ADDRESSES), toml::to_string(&list)?.as_bytes())?;
    for shard in (0..addresses.len() as u16).map(ShardId) {
        let mut params = CertificateParams::new(vec![name_of(shard)])?;
        params.distinguished_name.push(DnType::CommonName, format!("part {shard}"));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        let own = folder(dir, shard);
        DirBuilder::new().mode(0o700).create(&own).with_context(cannot)?;
        write(&own.join(CERTIFICATE), certificate.pem().as_bytes())?;
        write(&own.join(KEY), key.serialize_pem().as_bytes())?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(bytes))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn check(address: &str) -> anyhow::Result<()> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
    ensure!(
        port.is_some_and(|port| port > 0),
        "{address} is no address; an address is HOST:PORT, such as 10.0.0.1:7700"
    );
    Ok(())
}

/// The contents of the files that a shard needs.
pub(crate) struct Credentials {
    /// The addresses of the shards.
    pub(crate) addresses: Vec<String>,
    pub(crate) authority: RootCertStore,
    pub(crate) certificate: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Credentials {
    /// Reads the files of a shard.
    ///
    /// # Errors
    ///
    /// An error of one line that names the file.
    pub(crate) fn read(dir: &Path, shard: ShardId) -> anyhow::Result<Self> {
        let path = dir.join(ADDRESSES);
        let text = tofu_input::read_text(&path, tofu_input::LIST).with_context(|| {
            format!("cannot read {}; `tofu hosts init` makes it", path.display())
        })?;
        let Addresses { shards: addresses } = toml::from_str(&text)
            .map_err(|error| anyhow::anyhow!("{}: {}", path.display(), error.message()))?;
        for address in &addresses {
            check(address).with_context(|| path.display().to_string())?;
        }
        let own = folder(dir, shard);
        let no = |path: &Path| {
            format!("cannot read {}, which says that this is a shard", path.display())
        };
        let (authority, certificate, key) =
            (dir.join(AUTHORITY), own.join(CERTIFICATE), own.join(KEY));
        let mut roots = RootCertStore::empty();
        let read = |path: &Path| tofu_input::read(path, tofu_input::LIST).with_context(|| no(path));
        let pem = CertificateDer::from_pem_slice(&read(&authority)?);
        roots.add(pem.with_context(|| no(&authority))?)?;
        let pem = CertificateDer::from_pem_slice(&read(&certificate)?);
        let certificate = pem.with_context(|| no(&certificate))?;
        let pem = PrivateKeyDer::from_pem_slice(&read(&key)?);
        let key = pem.with_context(|| no(&key))?;
        Ok(Self { addresses, authority: roots, certificate: vec![certificate], key })
    }

    /// The addresses of a shard.
    pub(crate) fn sockets(&self, shard: ShardId) -> anyhow::Result<Vec<SocketAddr>> {
        let address = self.addresses.get(shard.index()).context("no such shard")?;
        let found =
            address.to_socket_addrs().with_context(|| format!("shard {shard}: {address}"))?;
        Ok(found.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(of: &[&str]) -> Vec<String> {
        of.iter().map(|&address| address.to_owned()).collect()
    }

    #[test]
    fn shards_files_are_readable_by_their_owner() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("hosts");
        init(&dir, &addresses(&["127.0.0.1:7001", "[::1]:7002"])).unwrap();
        for shard in [ShardId(0), ShardId(1)] {
            let found = Credentials::read(&dir, shard).unwrap();
            assert_eq!(found.addresses.len(), 2);
            assert_eq!(found.sockets(shard).unwrap().len(), 1);
        }
        let key = std::fs::metadata(dir.join("part-1/key.pem")).unwrap();
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
        let error = Credentials::read(&dir, ShardId(2)).err().unwrap().to_string();
        assert!(error.contains("part-2"), "{error}");
        let error = init(&dir, &addresses(&["127.0.0.1:7001"])).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
    }

    #[test]
    fn addresses_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        for (of, what) in [
            (&["here"][..], "is no address"),
            (&["here:0"], "is no address"),
            (&[":70"], "is no address"),
            (&["a:70", "a:70"], "two shards"),
            (&[], "at least one"),
        ] {
            let dir = folder.path().join("hosts");
            let error = init(&dir, &addresses(of)).unwrap_err().to_string();
            assert!(error.contains(what) && !dir.exists(), "{error}");
        }
    }
}
