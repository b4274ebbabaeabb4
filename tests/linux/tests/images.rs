//! The images of all tests here, and programs that one of them builds. Making them takes minutes
//! where the cache does not have them yet, so `ci/test` has them made while it compiles and runs
//! other tests.

use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{Image, Place, vfio_selftests};

#[test]
fn images_of_these_tests() {
    for image in Image::ALL {
        if Place::new(image).is_none() {
            return;
        }
    }
    let place = Place::empty();
    if has_compiler() {
        Sdk::new(&place).add_mpi(&place);
    }
    vfio_selftests();
}
