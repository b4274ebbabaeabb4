//! The parts of a link module, each by itself: protocol, reorder logic, reception.

mod device;
mod link;
mod nget;
mod receive;
mod window;
