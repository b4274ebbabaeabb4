//! What Linux nodes are made of: a QEMU if need be, a kernel, an initrd, a root.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use tofu_image::{Cache, Image, Progress, Qemu, Spec};
use tofu_programs::{LINUX, Shipped};
use tofu_supervisor::options::LinuxArgs;
use tofu_supervisor::plan::Plan;
use tofu_supervisor::units::{ImageName, MemorySize};
use tofu_vmm::LinuxSupport;

/// The image that is made if it is not there, and used if none is named.
pub(crate) const DEFAULT_IMAGE: &str = "default";

/// Files and programs that Linux nodes need.
#[derive(Clone, Debug)]
pub struct Kit {
    /// The kernel: an ELF file with a PVH note, or a bzImage.
    pub(crate) kernel: PathBuf,
    /// A cpio archive with our programs.
    pub(crate) initrd: PathBuf,
    /// A file system image with more programs, read-only.
    pub(crate) root: Option<PathBuf>,
}

impl Kit {
    /// What is asked for; what is missing is fetched and made. `kvm` is whether the host's
    /// hardware runs the guests.
    ///
    /// # Errors
    ///
    /// If something is not there or of the wrong kind, or cannot be fetched or made.
    pub fn prepare(
        image: Option<&ImageName>,
        args: &LinuxArgs,
        kvm: bool,
        progress: &dyn Progress,
    ) -> anyhow::Result<Self> {
        if let Some(path) = &args.kernel {
            check_kernel(path)?;
        }
        if let Some(path) = &args.initrd {
            check_initrd(path)?;
        }
        let cache = Cache::from_env()?;
        // An initrd has modules for its own kernel only, but one of somebody else's kernel may
        // have all built in.
        let (kernel, initrd, root) = match (&args.kernel, &args.initrd) {
            (Some(kernel), Some(initrd)) => (kernel.clone(), initrd.clone(), None),
            (kernel, initrd) => {
                let image = find_image(&cache, image, progress)?;
                // Emulated, a bzImage takes long to unpack itself. With hardware virtualisation
                // it does not, and QEMU with KVM was seen to hang where it enters an ELF file.
                let packed = image.kernel_bz.filter(|_| kvm);
                let own = packed.unwrap_or(image.kernel_elf);
                let kernel = kernel.clone().unwrap_or(own);
                let root = if initrd.is_some() { None } else { image.root };
                (kernel, initrd.clone().unwrap_or(image.initrd), root)
            }
        };
        Ok(Self { kernel, initrd, root })
    }
}

impl Kit {
    /// Checks that each Linux node of a plan has the memory that its kernel and its initramfs take
    /// before anything can run. The initramfs is there twice while it is unpacked.
    ///
    /// # Errors
    ///
    /// If one has less, with the least that does, or if a file cannot be read.
    pub fn check_memory(&self, plan: &Plan) -> anyhow::Result<()> {
        /// What Linux and the programs that every node runs want besides, in bytes.
        const MORE: u64 = 32 << 20;
        let cannot = |path: &Path| format!("cannot read {}", path.display());
        let kernel = fs::read(&self.kernel).with_context(|| cannot(&self.kernel))?;
        let kernel = tofu_image::kernel_size(&kernel).unwrap_or(0);
        let initrd = fs::metadata(&self.initrd).with_context(|| cannot(&self.initrd))?.len();
        let least = (kernel + 2 * initrd + MORE).next_multiple_of(1 << 20);
        let small = plan.linux().map(|(_, linux)| linux.memory).min_by_key(|memory| memory.0);
        match small {
            Some(memory) if memory.0 < least => bail!(
                "{memory} of memory are too little for a Linux node with this kernel and image; \
                 give {} or more",
                MemorySize(least)
            ),
            _ => Ok(()),
        }
    }
}

/// Programs of ours that every image has.
///
/// # Errors
///
/// None as long as the shipped programs have proper names.
pub fn tools() -> tofu_image::Result<Vec<tofu_image::Program>> {
    let program =
        |shipped: &Shipped| tofu_image::Program::new(shipped.name, shipped.image.to_vec());
    LINUX.iter().map(program).collect()
}

/// A QEMU that can be a client of our devices, fetched if there is none.
///
/// # Errors
///
/// If there is none and it cannot be fetched, or the host cannot share memory with it.
pub fn qemu(progress: &dyn Progress) -> anyhow::Result<Arc<Qemu>> {
    shared_memory()?;
    Ok(Arc::new(Cache::from_env()?.qemu(None, progress)?))
}

/// Whether KVM, rather than an emulated processor, is what runs Linux here.
pub fn kvm_runs_linux(support: LinuxSupport) -> bool {
    support == LinuxSupport::Full
}

/// The version of the QEMU that would be used without fetching one.
pub fn present_qemu(cache: &Cache) -> Option<String> {
    if std::env::var_os("TOFU_QEMU").is_some_and(|value| !value.is_empty()) {
        // Nothing is fetched if one is named.
        return cache.qemu(None, &tofu_image::Silent).ok().map(|qemu| qemu.version);
    }
    cache.present_qemu().map(|qemu| qemu.version)
}

/// Checks that the host can share guest memory between processes.
///
/// # Errors
///
/// What the host says.
pub fn shared_memory() -> anyhow::Result<()> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    memfd_create("tofu-probe", flags).context(
        "no shared memory: memfd_create fails on this host, and Linux nodes and tofu serve need it",
    )?;
    Ok(())
}

/// The image of this name with today's programs; the default one is made if it is not there.
fn find_image(
    cache: &Cache,
    name: Option<&ImageName>,
    progress: &dyn Progress,
) -> anyhow::Result<Image> {
    let name = name.map_or(DEFAULT_IMAGE, ImageName::as_str);
    // One that is damaged is made again if it is known how.
    let known = match cache.find(name) {
        Ok(image) => image,
        Err(_) if name == DEFAULT_IMAGE => None,
        Err(error) => return Err(error.into()),
    };
    let spec = match known {
        Some(image) => image.manifest.spec()?,
        None if name == DEFAULT_IMAGE => Spec::new(name)?,
        None => bail!(
            "image {name}: there is none; `tofu image ls` lists those there are, and \
             `tofu image build --name {name} --with ...` makes one"
        ),
    };
    Ok(cache.build(&spec.programs(tools()?), progress)?)
}

/// Checks that a file is a kernel.
fn check_kernel(path: &Path) -> anyhow::Result<()> {
    let bytes =
        fs::read(path).with_context(|| format!("kernel {}: cannot read it", path.display()))?;
    tofu_image::inspect_kernel(path, &bytes)?;
    Ok(())
}

/// Checks that a file can be an initrd.
fn check_initrd(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let metadata = path.metadata().with_context(|| format!("initrd {shown}: cannot read it"))?;
    if !metadata.is_file() || metadata.len() == 0 {
        bail!("initrd {shown}: not a file with something in it");
    }
    fs::File::open(path).with_context(|| format!("initrd {shown}: cannot read it"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_initrds_are_told_from_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let one_line = |error: anyhow::Error| {
            let text = format!("{error:#}");
            assert!(!text.contains('\n') && text.contains("file"), "{text}");
            text
        };
        assert!(one_line(check_kernel(&path).unwrap_err()).contains("No such file"));
        assert!(one_line(check_initrd(&path).unwrap_err()).contains("No such file"));
        fs::write(&path, "").unwrap();
        assert!(one_line(check_kernel(&path).unwrap_err()).contains("it is empty"));
        assert!(one_line(check_initrd(&path).unwrap_err()).contains("something in it"));
        fs::write(&path, "#!/bin/sh").unwrap();
        assert!(one_line(check_kernel(&path).unwrap_err()).contains("neither a bzImage nor"));
        assert!(check_initrd(&path).is_ok());
    }
}
