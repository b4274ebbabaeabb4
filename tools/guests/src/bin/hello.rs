//! Prints this node's coordinates and those of its neighbours.
#![cfg_attr(feature = "bare", no_std, no_main)]

use tofu_driver::Device;
use tofu_guests::{Error, fail, find_device, machine_shape, println};

tofu_guests::entry!(hello);

fn hello() -> Result<(), Error> {
    let shape = machine_shape()?;
    let device = Device::probe(find_device()?)?;
    let coords = device.coords();
    let id = shape.node_id(coords).ok_or_else(|| fail!("{coords} is not in the machine"))?;
    println!("I am node {id} of {}, at {coords}", shape.nodes());
    for (port, neighbor) in shape.neighbors(coords) {
        println!("port {port:2} leads to {neighbor}");
    }
    Ok(())
}
