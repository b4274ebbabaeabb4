//! Prints its command line and what it finds on the PCI bus.
#![no_std]
#![no_main]

use tofu_bare::{pci, println};

tofu_bare::entry!(main);

fn main() -> i32 {
    println!("hello: {}", tofu_bare::command_line());
    for device in pci::devices() {
        let (vendor, id) = device.id();
        println!("00:{:02x}.0 {vendor:04x}:{id:04x}", device.number());
    }
    0
}
