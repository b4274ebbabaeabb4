//! Requests of a client: their fields, and what they do to its device. Errors are the numbers that
//! the answers have.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::regs::{CqReg, NUM_CQ, NUM_TNI};
use tofu_abi::{CqId, Doorbell, TniId};
use tofu_machine::Doorbells;

use crate::client_device::ClientDevice;
use crate::irq::check_eventfd;
use crate::memory::{Backing, MapRequest, Rights};
use crate::pages::Mappable;
use crate::sent::SentFd;
use crate::wire::{Fields, HEADER_SIZE, device, dma, io_fd, irq, put, put_long, region};

/// An address at which every PC has ordinary memory, not a ROM or a device.
const ORDINARY_MEMORY: u64 = 1 << 20;

pub(crate) fn dma_map(
    client: &ClientDevice,
    mut body: Fields<'_>,
    mut fds: Vec<OwnedFd>,
) -> Result<(), Errno> {
    const SIZE: usize = 32;
    body.argsz(SIZE)?;
    let flags = body.u32()?;
    let rights = Rights { read: flags & dma::READ != 0, write: flags & dma::WRITE != 0 };
    let request =
        MapRequest { offset: body.u64()?, address: body.u64()?, size: body.u64()?, rights };
    let both = dma::READ | dma::WRITE;
    if flags & !both != 0 || flags & both == 0 || fds.len() > 1 {
        return Err(Errno::INVAL);
    }
    // ROMs and devices' memory come without a descriptor, too, and are not needed.
    let ordinary = request.address <= ORDINARY_MEMORY
        && request.address.saturating_add(request.size) > ORDINARY_MEMORY;
    if fds.is_empty() && ordinary && client.memory.backing() != Backing::Process {
        return Err(Errno::INVAL);
    }
    client.memory.map(request, fds.pop())
}

pub(crate) fn dma_unmap(
    client: &ClientDevice,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), Errno> {
    const SIZE: usize = 24;
    let echo = body.0.get(..SIZE).ok_or(Errno::INVAL)?;
    body.argsz(SIZE)?;
    let (flags, address, size) = (body.u32()?, body.u64()?, body.u64()?);
    let unmapped = match flags {
        0 => client.memory.unmap(address, size)?,
        dma::UNMAP_ALL if address == 0 && size == 0 => client.memory.clear(),
        dma::UNMAP_ALL => return Err(Errno::INVAL),
        _ => return Err(Errno::OPNOTSUPP),
    };
    reply.extend_from_slice(&echo[..SIZE - 8]);
    reply.extend_from_slice(&unmapped.to_ne_bytes());
    Ok(())
}

pub(crate) fn device_info(mut body: Fields<'_>, reply: &mut Vec<u8>) -> Result<(), Errno> {
    const SIZE: usize = 16;
    body.argsz(SIZE)?;
    put(reply, &[SIZE as u32, device::RESET | device::PCI, region::COUNT, irq::COUNT]);
    Ok(())
}

pub(crate) fn region_info(
    client: &ClientDevice,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
    fds: &mut Vec<SentFd>,
    takes_fds: usize,
) -> Result<(), Errno> {
    const SIZE: usize = 32;
    const CAPABILITY: usize = 16;
    const AREA: usize = 16;
    let argsz = body.argsz(SIZE)?;
    let (_flags, index) = (body.u32()?, body.u32()?);
    let size = client.region_size(index).ok_or(Errno::INVAL)?;
    let mut flags = if size == 0 { 0 } else { region::READ | region::WRITE };
    let mappable = client.mappable.as_ref();
    let mappable = mappable.filter(|it| index == u32::from(it.bar()) && takes_fds > 0);
    let areas = mappable.map(Mappable::areas).unwrap_or_default();
    let whole = mappable.map_or(SIZE, |_| SIZE + CAPABILITY + AREA * areas.len());
    // If the client's buffer is too small, the answer has neither capabilities nor a descriptor. A
    // client that does not repeat the request with the size in the answer cannot map anything.
    let mappable = mappable.filter(|_| argsz >= whole);
    let mut capabilities = 0;
    if mappable.is_some() {
        flags |= region::MMAP | region::CAPS;
        capabilities = SIZE as u32;
    }
    put(reply, &[whole as u32, flags, index, capabilities]);
    // An offset in the file is one in the region.
    put_long(reply, &[size, 0]);
    if let Some(mappable) = mappable {
        put(reply, &[region::SPARSE_MMAP, 0, areas.len() as u32, 0]);
        for (first, size) in areas {
            put_long(reply, &[first, size]);
        }
        fds.push(SentFd::Pages(mappable.file()));
    }
    Ok(())
}

/// The doorbells of all queues, or of as many as the client takes descriptors: of the first
/// queue of each TNI, then of the second, and so on.
pub(crate) fn region_io_fds(
    client: &ClientDevice,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
    fds: &mut Vec<SentFd>,
    takes_fds: usize,
) -> Result<(), Errno> {
    const SIZE: usize = 16;
    const PART: usize = 40;
    let argsz = body.argsz(SIZE)?;
    let (flags, index, count) = (body.u32()?, body.u32()?, body.u32()?);
    if flags != 0 || count != 0 || client.region_size(index).is_none() {
        return Err(Errno::INVAL);
    }
    let node = client.device.tofu().filter(|node| node.doorbells() == Doorbells::Trapped);
    let node = node.filter(|_| index == u32::from(REGISTER_BAR));
    let bells = node.map_or(0, |_| takes_fds.min(NUM_TNI * NUM_CQ));
    let whole = SIZE + PART * bells;
    put(reply, &[whole as u32, 0, index, bells as u32]);
    let Some(node) = node.filter(|_| argsz >= whole) else { return Ok(()) };
    for number in 0..bells {
        let (tni, cq) = (TniId::ALL[number % NUM_TNI], CqId::ALL[number / NUM_TNI]);
        let event = node.doorbell_event(tni, cq).map_err(|_| Errno::MFILE)?;
        // For writes of any size, which size 0 means, and of any value.
        put_long(reply, &[Doorbell::from(cq).page(tni) + CqReg::FetchStart.offset(), 0]);
        put(reply, &[number as u32, io_fd::IOEVENTFD, 0, 0]);
        put_long(reply, &[0]);
        fds.push(SentFd::Doorbell(event));
    }
    Ok(())
}

pub(crate) fn irq_info(
    client: &ClientDevice,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), Errno> {
    const SIZE: usize = 16;
    body.argsz(SIZE)?;
    let (_flags, index) = (body.u32()?, body.u32()?);
    let count = client.irq_count(index).ok_or(Errno::INVAL)?;
    let flags = if count == 0 { 0 } else { irq::EVENTFD };
    put(reply, &[SIZE as u32, flags, index, count]);
    Ok(())
}

pub(crate) fn set_irqs(
    client: &ClientDevice,
    mut body: Fields<'_>,
    fds: Vec<OwnedFd>,
) -> Result<(), Errno> {
    const SIZE: usize = 20;
    const NONE: u32 = irq::DATA_NONE | irq::ACTION_TRIGGER;
    const BOOL: u32 = irq::DATA_BOOL | irq::ACTION_TRIGGER;
    const EVENTFD: u32 = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
    body.argsz(SIZE)?;
    let (flags, index, start, count) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
    let total = client.irq_count(index).ok_or(Errno::INVAL)?;
    if start.checked_add(count).is_none_or(|end| end > total) {
        return Err(Errno::INVAL);
    }
    if flags == NONE && count == 0 {
        // Others that share the device keep their vectors, and MSI-X with them.
        if let Some(table) = client.device.endpoint().msix().filter(|_| index == irq::MSIX)
            && client.vectors.clear(table)
        {
            client.enable_msix(false);
        }
        return Ok(());
    }
    if index == irq::ERROR {
        return if flags == EVENTFD { Ok(()) } else { Err(Errno::OPNOTSUPP) };
    }
    let Some(table) = client.device.endpoint().msix().filter(|_| total > 0) else {
        return Err(Errno::INVAL);
    };
    // Both fit: a table has at most 2048 vectors.
    let vectors = start as u16..(start + count) as u16;
    match flags {
        NONE => vectors.for_each(|vector| client.vectors.signal(vector)),
        BOOL => {
            let wanted = body.0.get(..count as usize).ok_or(Errno::INVAL)?;
            let wanted = vectors.zip(wanted).filter(|&(_, &wanted)| wanted != 0);
            wanted.for_each(|(vector, _)| client.vectors.signal(vector));
        }
        EVENTFD if fds.is_empty() => {
            for vector in vectors {
                client.vectors.bind(table, vector, None)?;
            }
        }
        EVENTFD if fds.len() == vectors.len() => {
            fds.iter().try_for_each(check_eventfd)?;
            for (vector, event) in vectors.zip(fds) {
                client.vectors.bind(table, vector, Some(event))?;
            }
            client.enable_msix(true);
        }
        EVENTFD => return Err(Errno::INVAL),
        _ => return Err(Errno::OPNOTSUPP),
    }
    Ok(())
}

pub(crate) fn region_read(
    client: &ClientDevice,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), Errno> {
    const SIZE: usize = 16;
    let echo = body.0.get(..SIZE).ok_or(Errno::INVAL)?;
    let (offset, index, count) = (body.u64()?, body.u32()?, body.u32()? as usize);
    client.check_access(index, offset, count)?;
    reply.extend_from_slice(echo);
    reply.resize(HEADER_SIZE + SIZE + count, 0);
    client.region_read(index, offset, &mut reply[HEADER_SIZE + SIZE..]);
    Ok(())
}

pub(crate) fn region_write(
    client: &ClientDevice,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), Errno> {
    const SIZE: usize = 16;
    let echo = body.0.get(..SIZE).ok_or(Errno::INVAL)?;
    let (offset, index, count) = (body.u64()?, body.u32()?, body.u32()? as usize);
    client.check_access(index, offset, count)?;
    let data = body.0.get(..count).ok_or(Errno::INVAL)?;
    client.region_write(index, offset, data);
    reply.extend_from_slice(echo);
    Ok(())
}

/// Writes that a client has batched. Each is done as if it had come alone, and those that are not
/// possible are skipped; the answer says how many were done.
pub(crate) fn region_write_multi(
    client: &ClientDevice,
    mut body: Fields<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), Errno> {
    const WRITE: usize = 24;
    let count = usize::try_from(body.u64()?).map_err(|_| Errno::INVAL)?;
    if count.checked_mul(WRITE).is_none_or(|size| size > body.0.len()) {
        return Err(Errno::INVAL);
    }
    let mut done = 0u64;
    for _ in 0..count {
        let (offset, index, size) = (body.u64()?, body.u32()?, body.u32()? as usize);
        let data = body.u64()?.to_ne_bytes();
        let Some(data) = data.get(..size) else {
            continue;
        };
        if client.check_access(index, offset, size).is_ok() {
            client.region_write(index, offset, data);
            done += 1;
        }
    }
    put_long(reply, &[done]);
    Ok(())
}
