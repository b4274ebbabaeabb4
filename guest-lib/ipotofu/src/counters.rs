//! The counters of a link.

use core::ffi::CStr;
use core::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Numbers of events since the link was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Number of counters.
            pub const COUNT: usize = [$(stringify!($name)),*].len();

            /// The names, in the order of [`Counters::values`].
            pub const NAMES: [&'static CStr; Self::COUNT] = [$(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                }
            ),*];

            /// The values.
            pub const fn values(&self) -> [u64; Self::COUNT] {
                [$(self.$name),*]
            }

            /// Names and values of the counters.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let names = Self::NAMES.into_iter().map(|name| name.to_str().unwrap_or_default());
                names.zip(self.values())
            }
        }

        impl AddAssign for Counters {
            fn add_assign(&mut self, more: Self) {
                $(self.$name += more.$name;)*
            }
        }
    };
}

counters! {
    /// Frames sent; each broadcast counts once.
    sent,
    /// Frames received.
    received,
    /// Address queries that were answered here.
    answered,
    /// Fragments of broadcasts relayed to other nodes.
    relayed,
    /// Packets with an invalid header.
    malformed,
    /// Packets and frames that name another sender than their real one.
    spoofed,
    /// Frames that arrived at another node than the one that they are for.
    misdirected,
    /// Fragments received twice.
    duplicates,
    /// Frames with a wrong sum, and fragments that do not match their frame.
    damaged,
    /// Frames longer than the MTU allows.
    oversized,
    /// Frames that timed out incomplete, or for which there was no room.
    abandoned,
    /// Frames for which there was no memory.
    no_memory,
    /// Frames to hardware addresses without a node.
    no_such_node,
    /// Packets that were sent again over another route.
    rerouted,
    /// Routes that were skipped because of links known to be dead.
    avoided,
    /// Packets without a route or a buffer.
    lost,
    /// Frames among `sent` that the receiver was to fetch.
    rendezvous_sent,
    /// Frames among `received` that were fetched.
    rendezvous_received,
    /// Frames that this node was to fetch but could not.
    rendezvous_failed,
    /// Frames among `rendezvous_sent` whose completion report timed out.
    rendezvous_timed_out,
}
