//! Where the process's network processor comes from: chosen by environment variables, which are
//! those of `libtofucom`.

use std::collections::HashMap;
use std::env;
use std::sync::{Arc, Mutex};

use tofu_abi::Coords;
use tofu_abi::topology::{NodeId, Shape};
use tofu_inproc::InProcess;
use tofu_machine::Torus;
use tofu_process::lock;
use tofu_vfio::VfioPlatform;
use tofu_vfio_user_client::SocketPlatform;

use crate::error::{Code, Error};
use crate::platform::AnyPlatform;

/// Memory of a node in this process, in bytes. Only what is used takes memory.
const MEMORY: usize = 512 << 20;

/// Where network processors come from.
pub(crate) enum Backend {
    /// A machine in this process.
    InProcess { torus: Arc<Torus>, shape: Shape, nodes: Mutex<HashMap<Coords, InProcess>> },
    /// A node in another process of this host: `tofu run --local`.
    Served(String),
    /// A device of this computer's, by VFIO; its address, if one is named.
    Vfio(Option<String>),
}

/// Opens the platform of a node.
pub(crate) fn platform(backend: &Backend, node: u32) -> Result<AnyPlatform, Error> {
    match backend {
        Backend::InProcess { torus, shape, nodes } => {
            let at = shape.coords(NodeId(node)).ok_or_else(|| {
                let why = format!("the machine has {} nodes (TOFU_SHAPE)", shape.nodes());
                Error::new(Code::InvalidNode, why)
            })?;
            let mut nodes = lock(nodes);
            let platform = match nodes.get(&at) {
                Some(platform) => platform.clone(),
                None => {
                    let platform = InProcess::attach_nwp(torus, at, MEMORY)
                        .map_err(|error| Error::new(Code::OutOfMemory, error.to_string()))?;
                    nodes.insert(at, platform.clone());
                    platform
                }
            };
            Ok(AnyPlatform::InProcess(platform))
        }
        _ if node != 0 => Err(Error::new(Code::InvalidNode, "it has one, whose number is 0")),
        Backend::Served(socket) => SocketPlatform::connect(socket)
            .map(|platform| AnyPlatform::Served(Box::new(platform)))
            .map_err(|error| Error::new(Code::NotAvailable, error.to_string())),
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

/// What the environment asks for, also for a child of a process that has used it.
pub(crate) fn choose(is_child: bool) -> Result<Backend, Error> {
    let variable = |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let bad = |why| Err(Error::new(Code::NotAvailable, why));
    match variable("TOFU_PROVIDER").as_deref() {
        Some("inproc") => {
            let shape = variable("TOFU_SHAPE").unwrap_or_else(|| "2x2x2".to_owned());
            let torus = shape.parse().ok().and_then(|shape| Some((Torus::new(shape).ok()?, shape)));
            let Some((torus, shape)) = torus else {
                return bad("TOFU_SHAPE is not three lengths, as in 4x2x2");
            };
            if let Err(error) = torus.start() {
                return Err(Error::new(Code::OutOfMemory, error.to_string()));
            }
            let nodes = Mutex::default();
            Ok(Backend::InProcess { torus: Arc::new(torus), shape, nodes })
        }
        // The server would have it wait until its parent has ended.
        Some("local") if is_child => {
            bad("its node belongs to the process that has forked this one")
        }
        Some("local") => match variable("TOFU_LOCAL_SOCKET") {
            Some(socket) => Ok(Backend::Served(socket)),
            None => bad("TOFU_LOCAL_SOCKET is not set; `tofu run --local` sets it"),
        },
        Some("vfio") | None => Ok(Backend::Vfio(variable("TOFU_DEVICE"))),
        Some(_) => bad("TOFU_PROVIDER is not `inproc`, `local` or `vfio`"),
    }
}
