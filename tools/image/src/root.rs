//! stub
use crate::cache::Cache;
use crate::error::Result;
use crate::manifest::Manifest;
use crate::progress::Progress;
pub(crate) const RECIPE: &str = "1";
pub(crate) fn part(_: &Cache, _: &[String], _: bool, _: &dyn Progress) -> Result<(String, Manifest)> {
    unimplemented!()
}
