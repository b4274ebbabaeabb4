//! Options of `tofu bench`.

use std::path::PathBuf;

use tofu_spec::choices;

/// Options of `tofu bench`.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The only part that is measured.
    pub only: Option<BenchPart>,
    /// True if it is measured briefly, and without large machines.
    pub quick: bool,
    /// True if the figures are printed as JSON.
    pub json: bool,
    /// `utofu-perf`, linked statically, to measure uTofu.
    pub utofu_perf: Option<PathBuf>,
    /// The file for a picture of the barriers' figures, as SVG.
    pub plot: Option<PathBuf>,
    /// The file that the figures are appended to, and compared with the last ones of.
    pub trend: Option<PathBuf>,
}

choices! {
    /// A part of `tofu bench`.
    BenchPart, Put, "a part of the benchmark":
    /// Puts in this process by size, and commands a second, against a memory copy
    Put = "put",
    /// Messages of TNW in this process by size, against Puts of Tofu and memory copies
    Tnw = "tnw",
    /// Latency between two guests in each doorbell mode
    Guests = "guests",
    /// Barriers and sums of twelve guests, by gates and by Puts
    Barrier = "barrier",
    /// Machines of 1 to 1536 nodes from start to end, and their memory
    Boot = "boot",
    /// Linux nodes until they are ready: clones, against nodes that boot
    Clones = "clones",
    /// Two Linux nodes, against an Ethernet and soft RoCE between the same guests
    Linux = "linux",
    /// Linux nodes with Fugaku's processor, against x86 ones: until they are ready, and Puts
    Arm64 = "arm64",
    /// IP between two nodes, against virtio-net on a bridge, and TCP/IP stacks on a veth pair
    Ip = "ip",
    /// The kernel driver, against VFIO, tofu-net and virtio-net; needs its kernel (tofu image)
    Driver = "driver",
}
