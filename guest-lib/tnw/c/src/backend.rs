//! Where the process's network processor comes from: chosen by environment variables, which are
//! those of `libtofucom`.

use std::collections::HashMap;
use std::env;
use std::sync::{Arc, Mutex};

use tofu_abi::Coords;
use tofu_abi::topology::{NodeId, Shape};
use tofu_hosted::table::Kind;
use tofu_hosted::{HostMachine, HostPlatform, Interconnect, Library, Refused};
use tofu_process::lock;
use tofu_vfio::VfioPlatform;

use crate::error::{Code, Error};
use crate::platform::AnyPlatform;

/// The source of network processors.
pub(crate) enum Backend {
    /// A machine in this process.
    InProcess {
        machine: HostMachine,
        shape: Shape,
        /// Those that are attached.
        nodes: Mutex<HashMap<Coords, Arc<HostPlatform>>>,
    },
    /// A node in another process of this host, by its socket: `tofu run --local`.
    Served(Library, String),
    /// A device of this computer's, by VFIO; its address, if one is named.
    Vfio(Option<String>),
}

/// Opens the platform of a node.
pub(crate) fn platform(backend: &Backend, node: u32) -> Result<AnyPlatform, Error> {
    match backend {
        Backend::InProcess { machine, shape, nodes } => {
            let at = shape.coords(NodeId(node)).ok_or_else(|| {
                let why = format!("the machine has {} nodes (TOFU_SHAPE)", shape.nodes());
                Error::new(Code::InvalidNode, why)
            })?;
            let mut nodes = lock(nodes);
            let platform = match nodes.get(&at) {
                Some(platform) => Arc::clone(platform),
                None => {
                    let platform = Arc::new(machine.attach(at).map_err(refused)?);
                    nodes.insert(at, Arc::clone(&platform));
                    platform
                }
            };
            Ok(AnyPlatform::Hosted(platform))
        }
        _ if node != 0 => Err(Error::new(Code::InvalidNode, "it has one, whose number is 0")),
        Backend::Served(library, socket) => {
            let platform = library.connect(socket, 0, 1).map_err(refused)?;
            Ok(AnyPlatform::Hosted(Arc::new(platform)))
        }
        Backend::Vfio(bdf) => open_vfio(bdf.as_deref()),
    }
}

fn open_vfio(bdf: Option<&str>) -> Result<AnyPlatform, Error> {
    let none = |why: String| {
        let hint = "TOFU_PROVIDER=inproc would be a machine in this process";
        Error::new(Code::NotAvailable, format!("{why}; {hint}"))
    };
    let bdf = bdf.map(str::parse).transpose();
    let bdf = bdf.map_err(|error| none(format!("TOFU_DEVICE: {error}")))?;
    let platform = VfioPlatform::open_nwp(bdf).map_err(|error| none(error.to_string()))?;
    Ok(AnyPlatform::Vfio(Box::new(platform)))
}

/// Loads the devices of this host.
fn load() -> Result<Library, Error> {
    Library::load().map_err(|error| Error::new(Code::NotAvailable, error.to_string()))
}

/// Something that the library refuses.
fn refused(why: Refused) -> Error {
    let code = match why.kind {
        Kind::Memory | Kind::Resources => Code::OutOfMemory,
        _ => Code::NotAvailable,
    };
    Error::new(code, why.text)
}

/// The settings from the environment, also for a child of a process that has used them.
pub(crate) fn choose(is_child: bool) -> Result<Backend, Error> {
    let variable = |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let bad = |why| Err(Error::new(Code::NotAvailable, why));
    match variable("TOFU_PROVIDER").as_deref() {
        Some("inproc") => {
            let shape = variable("TOFU_SHAPE").unwrap_or_else(|| "2x2x2".to_owned());
            // A, B and C are 1.
            let is_torus = |shape: &Shape| shape.path_count() == 1;
            let Some(shape) = shape.parse().ok().filter(is_torus) else {
                return bad("TOFU_SHAPE is not three lengths, as in 4x2x2");
            };
            let machine = load()?.start(shape, Interconnect::Tnw).map_err(refused)?;
            Ok(Backend::InProcess { machine, shape, nodes: Mutex::default() })
        }
        // The server would have it wait until its parent has ended.
        Some("local") if is_child => {
            bad("its node belongs to the process that has forked this one")
        }
        Some("local") => match variable("TOFU_LOCAL_SOCKET") {
            Some(socket) => Ok(Backend::Served(load()?, socket)),
            None => bad("TOFU_LOCAL_SOCKET is not set; `tofu run --local` sets it"),
        },
        Some("vfio") | None => Ok(Backend::Vfio(variable("TOFU_DEVICE"))),
        Some(_) => bad("TOFU_PROVIDER is not `inproc`, `local` or `vfio`"),
    }
}
