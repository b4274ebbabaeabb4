//! Says who this node is and who its neighbours are.
#![no_std]
#![no_main]

use tofu_bare::platform::BarePlatform;
use tofu_bare::{option, println};
use tofu_driver::Device;
use tofu_driver::topology::{PORT_NAMES, Shape};
use tofu_guests::{Error, exit_code, fail};

tofu_bare::entry!(main);

fn main() -> i32 {
    exit_code(hello())
}

fn hello() -> Result<(), Error> {
    let text = option("shape").ok_or_else(|| fail!("no shape= on the command line"))?;
    let mut shape: Shape = text.parse()?;
    if let Some(axes) = option("torus") {
        shape = shape.with_torus(axes);
    }
    let device = Device::probe(BarePlatform::find()?)?;
    let coords = device.coords();
    let rank = shape.rank(coords).ok_or_else(|| fail!("{coords} is not in shape {text}"))?;
    println!("I am node {rank} of {}, at {coords}", shape.nodes());
    for (port, name) in PORT_NAMES.into_iter().enumerate() {
        if let Some(neighbor) = shape.neighbor(coords, port) {
            println!("port {name:2} leads to {neighbor}");
        }
    }
    Ok(())
}
