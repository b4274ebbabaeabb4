//! Readers of fields of machine files whose types are not of this crate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use tofu_abi::Coords;
use tofu_fabric::{Port, Shape};
use tofu_ui::not_allowed;

const SHAPE_ALLOWED: &str = "\"unit\", \"shelf\", \"half-rack\", \"rack\", \"k-racks\", \"k\", \
     six lengths XxYxZxAxBxC such as \"2x2x4x2x3x2\" (X, Y, Z 1 to 32; A, C 1 to 2; B 1 to 3) or \
     three, XxYxZ";
const COORDS_ALLOWED: &str = "[x, y, z, a, b, c], whole numbers from 0 to [31, 31, 31, 1, 2, 1]";
const PORT_ALLOWED: &str =
    "one of \"A\", \"C\", \"B-\", \"B+\", \"X-\", \"X+\", \"Y-\", \"Y+\", \"Z-\", \"Z+\"";

/// Reads a field that is text.
pub(crate) fn text<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    String::deserialize(from)?.parse().map(Some).map_err(not_allowed)
}

/// Reads a shape.
pub(crate) fn shape<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Shape>, D::Error> {
    let shape = String::deserialize(from)?.parse();
    shape.map(Some).or(Err(not_allowed(SHAPE_ALLOWED)))
}

/// Reads a port.
pub(crate) fn port<'de, D: Deserializer<'de>>(from: D) -> Result<Port, D::Error> {
    let name = String::deserialize(from)?;
    Port::from_name(&name).ok_or_else(|| not_allowed(PORT_ALLOWED))
}

/// Reads the coordinates of a node, which must be given.
pub(crate) fn at<'de, D: Deserializer<'de>>(from: D) -> Result<Coords, D::Error> {
    let numbers = Vec::<i64>::deserialize(from)?;
    let bytes = <[i64; 6]>::try_from(numbers).ok();
    let bytes = bytes.map(|all| all.map(|c| u8::try_from(c).unwrap_or(u8::MAX)));
    let coords = bytes.map(Coords::from_array).filter(|at| Shape::LARGEST.contains(*at));
    coords.ok_or_else(|| not_allowed(COORDS_ALLOWED))
}

/// Reads the coordinates of a node.
pub(crate) fn coords<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Coords>, D::Error> {
    at(from).map(Some)
}
