//! Kernel modules: what they depend on, and in which order they are loaded.
//!
//! Debian's kernel packages have no `modules.dep`, which depmod makes when they are installed. But
//! each module lists its dependencies in its `.modinfo` section, and this code follows them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _};

use crate::error::{Error, IoContext, Result};

/// The largest module that is accepted, in bytes.
const LIMIT: u64 = 64 << 20;

/// An unpacked module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    /// The name with underscores, as the kernel shows it.
    pub(crate) name: String,
    /// The path below the release's folder, without the suffix of the compression, such as
    /// `kernel/drivers/vfio/vfio.ko`.
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) depends: Vec<String>,
    pub(crate) aliases: Vec<String>,
}

/// The modules of a kernel release.
pub(crate) struct Tree {
    folders: Vec<PathBuf>,
    release: String,
    /// Files by the name of the module.
    files: BTreeMap<String, PathBuf>,
    built_in: Vec<String>,
}

/// The form of a module's file in an image.
#[derive(Clone, Copy)]
enum Form {
    Plain,
    /// Compressed, if it is so in its package.
    AsInPackage,
}

/// Replaces `-` in a name with `_`. The kernel treats both as the same.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the name of the module in a file `kernel/x/NAME.ko.xz`.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let name = file.strip_suffix(".ko").or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(plain(name))
}

impl Tree {
    /// Opens the modules in `folder`, which is the `/lib/modules/RELEASE` of a kernel package.
    pub(crate) fn open(folder: &Path, release: &str) -> Result<Self> {
        let built_in = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        let built_in = built_in.lines().filter_map(|line| name_of(Path::new(line))).collect();
        let mut tree =
            Self { folders: Vec::new(), release: release.into(), files: BTreeMap::new(), built_in };
        tree.add(folder)?;
        Ok(tree)
    }

    /// Adds modules that were built later for the same release, in another such folder.
    pub(crate) fn add(&mut self, folder: &Path) -> Result<()> {
        let mut folders = vec![folder.join("kernel")];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(&next).on("read", &next)? {
                let entry = entry.on("read", &next)?;
                let path = entry.path();
                if entry.file_type().on("look at", &path)?.is_dir() {
                    folders.push(path);
                } else if let Some(name) = name_of(&path) {
                    self.files.insert(name, path);
                }
            }
        }
        self.folders.push(folder.into());
        Ok(())
    }

    /// Returns the names of the modules in these folders or files, such as `net/bridge` or
    /// `drivers/net/veth.ko`.
    pub(crate) fn within(&self, places: &[&str]) -> Vec<&str> {
        let is_within = |path: &Path| {
            let mut roots = self.folders.iter().map(|folder| folder.join("kernel"));
            let path = path.with_extension("").with_extension("ko");
            roots.any(|root| places.iter().any(|place| path.starts_with(root.join(place))))
        };
        let within = self.files.iter().filter(|(_, path)| is_within(path));
        within.map(|(name, _)| name.as_str()).collect()
    }

    /// Returns whether the module exists as a file.
    pub(crate) fn has_file(&self, name: &str) -> bool {
        self.files.contains_key(&plain(name))
    }

    /// Returns whether the module exists, as a file or built in.
    pub(crate) fn has(&self, name: &str) -> bool {
        let name = plain(name);
        self.files.contains_key(&name) || self.built_in.contains(&name)
    }

    /// Returns `names` and all their dependencies, each after its own dependencies. Modules built
    /// into the kernel are left out.
    ///
    /// # Errors
    /// [`Error::NoModule`] for a name that the release does not have.
    pub(crate) fn closure(&self, names: &[&str]) -> Result<Vec<Module>> {
        self.closure_with(names, &[])
    }

    /// As [`Tree::closure`], with `more` modules that stay compressed: many of them are there and
    /// few are loaded.
    pub(crate) fn closure_with(&self, names: &[&str], more: &[&str]) -> Result<Vec<Module>> {
        let mut order = Vec::new();
        let mut seen = Vec::new();
        for (names, form) in [(names, Form::Plain), (more, Form::AsInPackage)] {
            for name in names {
                self.visit(&plain(name), form, &mut seen, &mut order)?;
            }
        }
        Ok(order)
    }

    /// Visits dependencies depth-first. `seen` breaks cycles, which no real kernel has.
    fn visit(
        &self,
        name: &str,
        form: Form,
        seen: &mut Vec<String>,
        order: &mut Vec<Module>,
    ) -> Result<()> {
        if self.built_in.iter().any(|known| known == name) || seen.iter().any(|known| known == name)
        {
            return Ok(());
        }
        seen.push(name.into());
        let path = self
            .files
            .get(name)
            .ok_or_else(|| Error::NoModule { name: name.into(), release: self.release.clone() })?;
        let bytes = read(path)?;
        let info =
            modinfo(&bytes).map_err(|reason| Error::Module { path: path.clone(), reason })?;
        for needed in &info.depends {
            self.visit(needed, form, seen, order)?;
        }
        for wanted in &info.soft {
            if self.has(wanted) {
                self.visit(wanted, form, seen, order)?;
            }
        }
        let relative = self.folders.iter().find_map(|folder| path.strip_prefix(folder).ok());
        let relative = relative.unwrap_or(path).to_string_lossy();
        let (path, bytes) = match form {
            Form::Plain => (relative.trim_end_matches(".xz").into(), bytes),
            Form::AsInPackage => (relative.into(), fs::read(path).on("read", path)?),
        };
        order.push(Module {
            name: name.into(),
            path,
            bytes,
            depends: info.depends,
            aliases: info.aliases,
        });
        Ok(())
    }
}

/// Reads a module file and unpacks it.
fn read(path: &Path) -> Result<Vec<u8>> {
    let file = tofu_input::read(path, LIMIT).on("read", path)?;
    if path.extension().is_some_and(|extension| extension == "xz") {
        let mut bytes = Vec::new();
        lzma_rust2::XzReader::new(file.as_slice(), false)
            .take(LIMIT)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::Module {
                path: path.into(),
                reason: format!("its xz data is damaged ({error})"),
            })?;
        return Ok(bytes);
    }
    Ok(file)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Info {
    depends: Vec<String>,
    soft: Vec<String>,
    aliases: Vec<String>,
}

/// Parses a module's description of itself: `key=value` strings, each terminated by NUL.
fn modinfo(bytes: &[u8]) -> std::result::Result<Info, String> {
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(|error| error.to_string())?;
    let section = file.section_by_name(".modinfo").ok_or("it has no .modinfo section")?;
    let data = section.data().map_err(|error| error.to_string())?;
    Ok(parse_info(data))
}

fn parse_info(data: &[u8]) -> Info {
    let mut info = Info::default();
    for text in data.split(|byte| *byte == 0) {
        let Ok(text) = std::str::from_utf8(text) else { continue };
        if let Some(names) = text.strip_prefix("depends=") {
            info.depends.extend(names.split(',').filter(|name| !name.is_empty()).map(plain));
        } else if let Some(soft) = text.strip_prefix("softdep=pre: ") {
            let before = soft.split("post:").next().unwrap_or_default();
            info.soft.extend(before.split_whitespace().map(plain));
        } else if let Some(alias) = text.strip_prefix("alias=") {
            info.aliases.push(alias.into());
        }
    }
    info
}

/// Returns the text of `modules.dep` for `modules`, in the order of loading, for modprobe in the
/// guest, which loads the modules of a line from right to left.
pub(crate) fn dependency_file(modules: &[Module]) -> String {
    let mut text = String::new();
    for (index, module) in modules.iter().enumerate() {
        let mut needed: Vec<&String> = module.depends.iter().collect();
        let mut line = format!("{}:", module.path);
        for earlier in modules[..index].iter().rev() {
            if needed.contains(&&earlier.name) {
                needed.extend(&earlier.depends);
                line.push(' ');
                line.push_str(&earlier.path);
            }
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Returns the text of `modules.alias` for these modules.
pub(crate) fn alias_file(modules: &[Module]) -> String {
    modules
        .iter()
        .flat_map(|m| m.aliases.iter().map(move |alias| format!("alias {alias} {}\n", m.name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, depends: &[&str]) -> Module {
        Module {
            name: name.into(),
            path: format!("kernel/{name}.ko"),
            bytes: Vec::new(),
            depends: depends.iter().map(|&name| name.into()).collect(),
            aliases: Vec::new(),
        }
    }

    /// Makes an ELF object with only a `.modinfo` section.
    fn object(info: &[&str]) -> Vec<u8> {
        let data: Vec<u8> =
            info.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect();
        let names = b"\0.modinfo\0.shstrtab\0";
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for field in [1u16, 62] {
            file.extend_from_slice(&field.to_le_bytes());
        }
        file.extend_from_slice(&1u32.to_le_bytes());
        let sections = 64 + data.len() + names.len();
        for field in [0u64, 0, sections as u64] {
            file.extend_from_slice(&field.to_le_bytes());
        }
        file.extend_from_slice(&0u32.to_le_bytes());
        for field in [64u16, 0, 0, 64, 3, 2] {
            file.extend_from_slice(&field.to_le_bytes());
        }
        file.extend_from_slice(&data);
        file.extend_from_slice(names);
        for (name, kind, offset, size) in
            [(0u32, 0u32, 0, 0), (1, 1, 64, data.len()), (10, 3, 64 + data.len(), names.len())]
        {
            file.extend_from_slice(&name.to_le_bytes());
            file.extend_from_slice(&kind.to_le_bytes());
            for field in [0u64, 0, offset as u64, size as u64, 0, 1, 0] {
                file.extend_from_slice(&field.to_le_bytes());
            }
        }
        file
    }

    fn tree(modules: &[(&str, &[&str])], built_in: &str) -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().unwrap();
        for (file, info) in modules {
            let folder = folder.path().join("kernel");
            // A module without a folder is a driver.
            let path = if file.contains('/') {
                folder.join(file)
            } else {
                folder.join("drivers").join(file)
            };
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, object(info)).unwrap();
        }
        fs::write(folder.path().join("modules.builtin"), built_in).unwrap();
        let tree = Tree::open(folder.path(), "6.12").unwrap();
        (folder, tree)
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let (_folder, tree) = tree(
            &[
                ("vfio-pci.ko", &["depends=vfio-pci-core,vfio", "alias=pci:x"]),
                ("vfio-pci-core.ko", &["depends=vfio,irqbypass"]),
                ("vfio.ko", &["depends=", "license=GPL"]),
                ("irqbypass.ko", &[]),
                ("soft.ko", &["softdep=pre: crc absent post: late"]),
                ("crc.ko", &[]),
                ("late.ko", &[]),
            ],
            "kernel/drivers/virtio_pci.ko\n",
        );
        let names = |wanted: &[&str]| -> Vec<String> {
            tree.closure(wanted).unwrap().into_iter().map(|module| module.name).collect()
        };
        assert_eq!(
            names(&["vfio-pci", "vfio", "virtio-pci"]),
            ["vfio", "irqbypass", "vfio_pci_core", "vfio_pci"]
        );
        assert_eq!(names(&["soft"]), ["crc", "soft"]);
        assert!(tree.has("vfio_pci") && tree.has("virtio_pci") && !tree.has("rdma_rxe"));
        let error = tree.closure(&["rdma_rxe"]).unwrap_err().to_string();
        assert_eq!(
            error,
            "kernel 6.12 has no module \"rdma_rxe\"; with --kernel generic there are more"
        );
        let modules = tree.closure(&["vfio_pci"]).unwrap();
        assert_eq!(modules[3].path, "kernel/drivers/vfio-pci.ko");
        assert_eq!(alias_file(&modules), "alias pci:x vfio_pci\n");
    }

    #[test]
    fn circles_and_missing_needs_end() {
        let (_folder, tree) = tree(
            &[("a.ko", &["depends=b"]), ("b.ko", &["depends=a"]), ("c.ko", &["depends=zz"])],
            "",
        );
        assert_eq!(tree.closure(&["a"]).unwrap().len(), 2);
        assert!(matches!(tree.closure(&["c"]), Err(Error::NoModule { name, .. }) if name == "zz"));
    }

    #[test]
    fn modules_of_a_folder_are_found_unchanged() {
        let (folder, tree) = tree(
            &[
                ("net/bridge/bridge.ko", &["depends=stp"]),
                ("net/802/stp.ko", &["depends="]),
                ("net/bridged/other.ko", &["depends="]),
                ("drivers/net/veth.ko", &["depends="]),
                ("drivers/net/ethernet/e1000.ko", &["depends="]),
            ],
            "",
        );
        let found = tree.within(&["net/bridge", "drivers/net/veth.ko", "net/none"]);
        assert_eq!(found, ["bridge", "veth"]);
        let modules = tree.closure_with(&["stp"], &found).unwrap();
        let names: Vec<_> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["stp", "bridge", "veth"]);
        let file = folder.path().join("kernel/net/bridge/bridge.ko");
        assert_eq!(modules[1].bytes, fs::read(file).unwrap());
    }

    #[test]
    fn damaged_modules_are_named() {
        let (folder, tree) = tree(&[("a.ko", &[])], "");
        let path = folder.path().join("kernel/drivers/a.ko");
        fs::write(&path, b"not ELF").unwrap();
        let error = tree.closure(&["a"]).unwrap_err();
        assert!(matches!(&error, Error::Module { path: named, .. } if *named == path), "{error}");
    }

    #[test]
    fn lines_list_all_needs_from_right_to_left() {
        let modules = [
            module("vfio", &[]),
            module("irqbypass", &[]),
            module("core", &["vfio", "irqbypass"]),
            module("pci", &["core"]),
        ];
        assert_eq!(
            dependency_file(&modules),
            "kernel/vfio.ko:\nkernel/irqbypass.ko:\n\
             kernel/core.ko: kernel/irqbypass.ko kernel/vfio.ko\n\
             kernel/pci.ko: kernel/core.ko kernel/irqbypass.ko kernel/vfio.ko\n"
        );
    }

    #[test]
    fn modinfo_of_bytes_that_are_no_text() {
        assert_eq!(parse_info(b"depends=a,b-c\0\xff\xfe\0depends").depends, ["a", "b_c"]);
    }
}
