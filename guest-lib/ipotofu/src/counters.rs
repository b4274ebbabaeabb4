//! The counters of a link.

use core::ffi::CStr;
use core::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What was done, since the beginning.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// How many counters there are.
            pub const COUNT: usize = [$(stringify!($name)),*].len();

            /// Their names, in the order of [`Counters::values`].
            pub const NAMES: [&'static CStr; Self::COUNT] = [$(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                }
            ),*];

            /// Their values.
            pub const fn values(&self) -> [u64; Self::COUNT] {
                [$(self.$name),*]
            }

            /// Names and values.
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
    /// Frames sent, broadcasts once.
    sent,
    /// Frames received.
    received,
    /// Questions for addresses that were answered here.
    answered,
    /// Fragments of broadcasts relayed to other nodes.
    relayed,
    /// Packets that are none of this format.
    malformed,
    /// Packets and frames that name another sender than they have.
    spoofed,
    /// Frames for other nodes than the one that they came to.
    misdirected,
    /// Fragments that came twice.
    duplicates,
    /// Frames whose sum is wrong, and fragments that do not fit to theirs.
    damaged,
    /// Frames that were longer than the MTU allows.
    oversized,
    /// Frames not all of whose fragments came in time, or for which there was no room.
    abandoned,
    /// Frames for which there was no memory.
    no_memory,
    /// Frames to hardware addresses of no node.
    no_such_node,
    /// Packets that were sent again by another way.
    rerouted,
    /// Ways to nodes that were chosen for links that are known to be dead.
    avoided,
    /// Packets that found no way, or no buffer.
    lost,
    /// Frames among those sent that were to be fetched by their receiver.
    rendezvous_sent,
    /// Frames among those received that were fetched.
    rendezvous_received,
    /// Frames that were to be fetched here but could not be.
    rendezvous_failed,
    /// Frames among `rendezvous_sent` whose end was not reported in time.
    rendezvous_timed_out,
}
