//! CPUID: the features of a guest's CPU.

use kvm_bindings::{
    CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2,
};
use kvm_ioctls::{Cap, Kvm};

use crate::Error;
use crate::support::Virtualisation;

const FEATURES: u32 = 1;
const ECX_FMA: u32 = 1 << 12;
const ECX_CX16: u32 = 1 << 13;
const ECX_POPCNT: u32 = 1 << 23;
const ECX_TSC_DEADLINE: u32 = 1 << 24;
const ECX_XSAVE: u32 = 1 << 26;
const ECX_OSXSAVE: u32 = 1 << 27;
const ECX_AVX: u32 = 1 << 28;
const ECX_F16C: u32 = 1 << 29;
const ECX_HYPERVISOR: u32 = 1 << 31;
const EXTENDED_FEATURES: u32 = 7;
const EBX_BMI1: u32 = 1 << 3;
const EBX_AVX2: u32 = 1 << 5;
const EBX_BMI2: u32 = 1 << 8;
const EDX_HTT: u32 = 1 << 28;
const CACHES: u32 = 4;
const TOPOLOGY: u32 = 0xb;
const TOPOLOGY_V2: u32 = 0x1f;
const XSAVE: u32 = 0xd;
const ADDRESS_SIZES: u32 = 0x8000_0008;
const AMD_CACHES: u32 = 0x8000_001d;
const AMD_TOPOLOGY: u32 = 0x8000_001e;

/// The template for all VMs of this host.
///
/// On PVM, KVM's instruction emulator runs guest kernel code. It does not implement XSAVE, the AVX
/// family, BMI, POPCNT and CMPXCHG16B, and a VMCALL hangs. So these features and the hypervisor
/// itself are not announced there.
pub(crate) fn template(kvm: &Kvm, kind: Virtualisation) -> Result<CpuId, Error> {
    let mut cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(Error::kvm("reading the supported CPUID leaves"))?;
    // Not in KVM's list, because it depends on the in-kernel interrupt controller.
    if kvm.check_extension(Cap::TscDeadlineTimer) {
        for entry in cpuid.as_mut_slice().iter_mut().filter(|entry| entry.function == FEATURES) {
            entry.ecx |= ECX_TSC_DEADLINE;
        }
    }
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
                    entry.ebx &= !(EBX_BMI1 | EBX_AVX2 | EBX_BMI2 | AVX512);
                }
                _ => {}
            }
        }
    }
    Ok(cpuid)
}

/// The template made out to one vCPU of `count`: one socket of so many cores, with
/// one thread each, whose APIC IDs count from 0.
pub(crate) fn for_vcpu(template: &CpuId, id: u8, count: u8) -> Result<CpuId, Error> {
    let mut cpuid = template.clone();
    let leaf = |function| template.as_slice().iter().find(move |e| e.function == function);
    let amd = leaf(0).is_some_and(|entry| entry.ebx.to_le_bytes() == *b"Auth");
    let (id, count) = (u32::from(id), u32::from(count.max(1)));
    let id_bits = count.next_power_of_two().trailing_zeros();
    let last_id = (1 << id_bits) - 1;
    // The number of CPUs that share a cache, minus one: all share the last level, none the others.
    let sharing = |cache: u32| if cache >> 5 & 7 >= 3 { last_id } else { 0 };
    cpuid.retain(|entry| !matches!(entry.function, TOPOLOGY | TOPOLOGY_V2));
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            FEATURES => {
                entry.ebx = (entry.ebx & 0x0000_ffff) | id << 24 | count << 16;
                if count > 1 {
                    entry.edx |= EDX_HTT;
                }
            }
            CACHES if entry.eax & 0x1f != 0 => {
                let cores = last_id << 26;
                entry.eax = (entry.eax & 0x3fff) | sharing(entry.eax) << 14 | cores;
            }
            AMD_CACHES if amd && entry.eax & 0x1f != 0 => {
                entry.eax = (entry.eax & 0xfc00_3fff) | sharing(entry.eax) << 14;
            }
            ADDRESS_SIZES if amd => {
                entry.ecx = (entry.ecx & !0xf0ff) | id_bits << 12 | (count - 1);
            }
            AMD_TOPOLOGY if amd => (entry.eax, entry.ebx, entry.ecx) = (id, id, 0),
            _ => {}
        }
    }
    if leaf(0).is_some_and(|entry| entry.eax >= TOPOLOGY) {
        // Levels: threads of a core, cores of the socket, end.
        for (index, (bits, number, kind)) in
            [(0, 1, 1), (id_bits, count, 2), (0, 0, 0)].into_iter().enumerate()
        {
            let entry = kvm_cpuid_entry2 {
                function: TOPOLOGY,
                index: index as u32,
                flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
                eax: bits,
                ebx: number,
                ecx: kind << 8 | index as u32,
                edx: id,
                ..Default::default()
            };
            cpuid.push(entry).map_err(|_| Error::State("out of CPUID entries"))?;
        }
    }
    Ok(cpuid)
}

/// Width of guest-physical addresses in bits; 36 if the leaf is missing.
pub(crate) fn physical_address_bits(cpuid: &CpuId) -> u8 {
    let leaf = |entry: &&kvm_cpuid_entry2| entry.function == ADDRESS_SIZES;
    cpuid.as_slice().iter().find(leaf).map_or(36, |entry| entry.eax as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(cpuid: &CpuId, function: u32, index: u32) -> kvm_cpuid_entry2 {
        let wanted = |e: &&kvm_cpuid_entry2| e.function == function && e.index == index;
        *cpuid.as_slice().iter().find(wanted).unwrap()
    }

    fn template(vendor: &[u8; 4]) -> CpuId {
        let entry = |function, index, eax, ebx| kvm_cpuid_entry2 {
            function,
            index,
            eax,
            ebx,
            ..Default::default()
        };
        let entries = [
            entry(0, 0, 0x1f, u32::from_le_bytes(*vendor)),
            entry(FEATURES, 0, 0, 0xffff_0800),
            entry(CACHES, 0, 0xfc00_4121, 0),
            entry(CACHES, 3, 0xfc1f_c163, 0),
            entry(CACHES, 4, 0, 0),
            entry(TOPOLOGY, 0, 1, 2),
            entry(TOPOLOGY_V2, 0, 1, 2),
            entry(ADDRESS_SIZES, 0, 0x3030, 0),
            entry(AMD_TOPOLOGY, 0, 7, 7),
            entry(AMD_CACHES, 0, 0x4121, 0),
            entry(AMD_CACHES, 3, 0x1_c163, 0),
        ];
        CpuId::from_entries(&entries).unwrap()
    }

    #[test]
    fn each_vcpu_is_a_core_of_one_socket() {
        let template = template(b"Genu");
        for count in [1, 2, 3, 16] {
            for id in 0..count {
                let cpuid = for_vcpu(&template, id, count).unwrap();
                let (id, count) = (u32::from(id), u32::from(count));
                let features = leaf(&cpuid, FEATURES, 0);
                assert_eq!(features.ebx, id << 24 | count << 16 | 0x0800);
                assert_eq!(features.edx & EDX_HTT != 0, count > 1);
                let core = leaf(&cpuid, TOPOLOGY, 1);
                assert_eq!((core.ebx, core.ecx, core.edx), (count, 0x201, id));
                // All APIC IDs of the socket differ in the bits that the level names.
                assert!(count <= 1 << core.eax && id >> core.eax == 0);
                assert_eq!(leaf(&cpuid, TOPOLOGY, 0).ebx, 1);
                assert_eq!(leaf(&cpuid, TOPOLOGY, 2).ebx, 0);
                assert!(leaf(&cpuid, CACHES, 0).eax >> 14 & 0xfff == 0);
                assert_eq!(leaf(&cpuid, CACHES, 3).eax >> 14 & 0xfff, (1 << core.eax) - 1);
                assert_eq!(leaf(&cpuid, CACHES, 4).eax, 0);
                assert_eq!(leaf(&cpuid, ADDRESS_SIZES, 0).ecx, 0);
                assert!(!cpuid.as_slice().iter().any(|entry| entry.function == TOPOLOGY_V2));
            }
        }
    }

    #[test]
    fn amd_has_leaves_of_its_own() {
        let cpuid = for_vcpu(&template(b"Auth"), 2, 3).unwrap();
        assert_eq!(leaf(&cpuid, ADDRESS_SIZES, 0).ecx, 2 << 12 | 2);
        assert_eq!(leaf(&cpuid, AMD_TOPOLOGY, 0).eax, 2);
        assert_eq!(leaf(&cpuid, AMD_CACHES, 0).eax, 0x0121);
        assert_eq!(leaf(&cpuid, AMD_CACHES, 3).eax, 3 << 14 | 0x0163);
    }
}
