//! A plugin of QEMU that keeps a guest in the modelled time of its machine.
//!
//! QEMU counts the guest's instructions (`-icount shift=0,sleep=off`), and all of its clocks follow
//! them. A timer of QEMU's virtual clock stops the guest where the machine allows it to run to.
//! Before each access to the device, the plugin also reports the time, and the guest continues when
//! the machine has reached it. Interrupts come with the machine's answers, and are delivered at
//! that point.
//!
//! QEMU's executable exports the functions that its modules use. Functions outside of the plugin
//! API are not a stable interface: all are looked up when the plugin is loaded, and missing ones
//! are named in one line.
//!
//! Load it with `-plugin file=libtofutime.so,pace=SOCKET`. A guest that is a clone has `clone=on`
//! as well: its time begins at what its clock shows, after QEMU has loaded its state. With
//! `template=PS` instead, the picoseconds of an instruction, the guest is one to clone. It has no
//! machine, and its clock is not faster than the host's. With `stacks=FD`, a memory file of `tofu
//! prove`, the guest keeps the host's time, and the plugin writes down which of its code breaks
//! rules of the device.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod accesses;
#[allow(unsafe_code)]
mod blocks;
mod callbacks;
#[allow(unsafe_code)]
mod clock;
#[allow(unsafe_code)]
mod hpet;
mod pace;
#[allow(unsafe_code)]
mod qemu;
#[allow(unsafe_code)]
mod stacks;
#[allow(unsafe_code)]
mod symbols;
#[allow(unsafe_code)]
mod template;
#[allow(unsafe_code)]
mod wakeups;
