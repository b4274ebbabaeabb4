//! What guests are told about their CPU.

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use kvm_ioctls::Kvm;

use crate::Error;
use crate::probe::Virtualisation;

const FEATURES: u32 = 1;
const ECX_FMA: u32 = 1 << 12;
const ECX_CX16: u32 = 1 << 13;
const ECX_POPCNT: u32 = 1 << 23;
const ECX_XSAVE: u32 = 1 << 26;
const ECX_OSXSAVE: u32 = 1 << 27;
const ECX_AVX: u32 = 1 << 28;
const ECX_F16C: u32 = 1 << 29;
const ECX_HYPERVISOR: u32 = 1 << 31;
const EXTENDED_FEATURES: u32 = 7;
const EBX_AVX2: u32 = 1 << 5;
const TOPOLOGY: u32 = 0xb;
const TOPOLOGY_V2: u32 = 0x1f;
const XSAVE: u32 = 0xd;
const ADDRESS_SIZES: u32 = 0x8000_0008;

/// The template for all VMs of this host.
///
/// On PVM, guest kernel code is run by KVM's instruction emulator. It knows
/// neither XSAVE and the AVX family nor POPCNT and CMPXCHG16B, and a VMCALL
/// hangs, so none of them is announced there, nor is the hypervisor itself.
pub(crate) fn template(kvm: &Kvm, kind: Virtualisation) -> Result<CpuId, Error> {
    let mut cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(Error::kvm("reading the supported CPUID leaves"))?;
    if kind == Virtualisation::Pvm {
        cpuid.retain(|entry| {
            !(0x4000_0000..0x4000_0100).contains(&entry.function) && entry.function != XSAVE
        });
        for entry in cpuid.as_mut_slice() {
            match entry.function {
                FEATURES => {
                    entry.ecx &= !(ECX_FMA
                        | ECX_CX16
                        | ECX_POPCNT
                        | ECX_XSAVE
                        | ECX_OSXSAVE
                        | ECX_AVX
                        | ECX_F16C
                        | ECX_HYPERVISOR);
                }
                EXTENDED_FEATURES if entry.index == 0 => {
                    const AVX512: u32 = 1 << 16 | 1 << 17 | 1 << 21 | 0b111 << 26 | 0b11 << 30;
                    entry.ebx &= !(EBX_AVX2 | AVX512);
                }
                _ => {}
            }
        }
    }
    Ok(cpuid)
}

/// The template made out to one vCPU of `count`.
pub(crate) fn for_vcpu(template: &CpuId, id: u8, count: u8) -> CpuId {
    let mut cpuid = template.clone();
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            FEATURES => {
                entry.ebx =
                    (entry.ebx & 0x0000_ffff) | u32::from(id) << 24 | u32::from(count) << 16;
            }
            TOPOLOGY | TOPOLOGY_V2 => entry.edx = u32::from(id),
            _ => {}
        }
    }
    cpuid
}

/// Width of guest-physical addresses in bits; 36 if the leaf is missing.
pub(crate) fn physical_address_bits(cpuid: &CpuId) -> u8 {
    let leaf = |entry: &&kvm_cpuid_entry2| entry.function == ADDRESS_SIZES;
    cpuid.as_slice().iter().find(leaf).map_or(36, |entry| entry.eax as u8)
}
