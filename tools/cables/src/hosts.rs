//! A folder with addresses and certificates, which say which process is which part.

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
use tofu_fabric::{PartId, Parts};

/// The file with the addresses.
const ADDRESSES: &str = "parts.toml";
const AUTHORITY: &str = "authority.pem";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Addresses {
    /// The addresses of the parts, `HOST:PORT`.
    parts: Vec<String>,
}

/// The name in the certificate of a part. It is not a host name.
fn name_of(part: PartId) -> String {
    format!("part-{part}.tofu.invalid")
}

/// The same name for TLS.
pub(crate) fn server_name(part: PartId) -> anyhow::Result<ServerName<'static>> {
    Ok(ServerName::try_from(name_of(part))?)
}

/// The folder of a part's own files.
fn folder(dir: &Path, part: PartId) -> PathBuf {
    dir.join(format!("part-{part}"))
}

/// Creates a folder for a machine whose parts listen at these addresses. It contains the addresses,
/// and for each part a key and a certificate. The authority that signs these is created for it, and
/// its key is not kept.
///
/// # Errors
///
/// If the folder already exists or cannot be created, or an address is invalid.
pub fn init(dir: &Path, addresses: &[String]) -> anyhow::Result<()> {
    ensure!(!addresses.is_empty(), "a machine has at least one part; give HOST:PORT for each");
    ensure!(
        addresses.len() <= Parts::MOST as usize,
        "{} addresses: a machine has {} parts at most",
        addresses.len(),
        Parts::MOST
    );
    for address in addresses {
        check(address)?;
    }
    if let Some(twice) = addresses.iter().enumerate().find(|(n, a)| addresses[..*n].contains(a)) {
        bail!("{}: two parts cannot listen at one address", twice.1);
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
    let list = Addresses { parts: addresses.to_vec() };
    write(&dir.join(ADDRESSES), toml::to_string(&list)?.as_bytes())?;
    for part in (0..addresses.len() as u16).map(PartId) {
        let mut params = CertificateParams::new(vec![name_of(part)])?;
        params.distinguished_name.push(DnType::CommonName, format!("part {part}"));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        let own = folder(dir, part);
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

/// The contents of the files that a part needs.
pub(crate) struct Credentials {
    /// The addresses of the parts.
    pub(crate) addresses: Vec<String>,
    pub(crate) authority: RootCertStore,
    pub(crate) certificate: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Credentials {
    /// Reads the files of a part.
    ///
    /// # Errors
    ///
    /// An error of one line that names the file.
    pub(crate) fn read(dir: &Path, part: PartId) -> anyhow::Result<Self> {
        let path = dir.join(ADDRESSES);
        let text = tofu_input::read_text(&path, tofu_input::LIST).with_context(|| {
            format!("cannot read {}; `tofu hosts init` makes it", path.display())
        })?;
        let Addresses { parts: addresses } = toml::from_str(&text)
            .map_err(|error| anyhow::anyhow!("{}: {}", path.display(), error.message()))?;
        for address in &addresses {
            check(address).with_context(|| path.display().to_string())?;
        }
        let own = folder(dir, part);
        let no =
            |path: &Path| format!("cannot read {}, which says that this is a part", path.display());
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

    /// The addresses of a part.
    pub(crate) fn sockets(&self, part: PartId) -> anyhow::Result<Vec<SocketAddr>> {
        let address = self.addresses.get(part.index()).context("no such part")?;
        let found = address.to_socket_addrs().with_context(|| format!("part {part}: {address}"))?;
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
    fn parts_files_are_readable_by_their_owner() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("hosts");
        init(&dir, &addresses(&["127.0.0.1:7001", "[::1]:7002"])).unwrap();
        for part in [PartId(0), PartId(1)] {
            let found = Credentials::read(&dir, part).unwrap();
            assert_eq!(found.addresses.len(), 2);
            assert_eq!(found.sockets(part).unwrap().len(), 1);
        }
        let key = std::fs::metadata(dir.join("part-1/key.pem")).unwrap();
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
        let error = Credentials::read(&dir, PartId(2)).err().unwrap().to_string();
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
            (&["a:70", "a:70"], "two parts"),
            (&[], "at least one"),
        ] {
            let dir = folder.path().join("hosts");
            let error = init(&dir, &addresses(of)).unwrap_err().to_string();
            assert!(error.contains(what) && !dir.exists(), "{error}");
        }
    }
}
