//! The topology of a job: the placement of its processes in the machine.
//!
//! A job asks for a torus of one, two or three axes. It gets nodes of the 6D mesh/torus such that
//! neighbours in its torus are neighbours in the machine: a [`RankMap`]. The launcher stores the
//! map and its machine as a [`Mapinfo`]. Programs read the mapinfo and query it for coordinates,
//! for the ranks at a place, and for the paths to another node ([`Jobs`], on which the C library
//! `libtofutop` is built).

#![forbid(unsafe_code)]

mod axis_embedding;
mod env;
mod jobs;
mod link_state;
mod map;
mod mapinfo;
mod route;
mod system;

pub use env::{EnvError, from_env, from_vars, vars};
pub use jobs::{JobError, Jobs};
pub use link_state::dead_links;
pub use map::{AxisMap, LogicalShape, LogicalShapeError, MapError, RankMap};
pub use mapinfo::{Job, Mapinfo, MapinfoError};
pub use route::{PathTo, RouteError};
pub use system::{System, SystemError};
pub use tofu_abi::{Coords, Path};
