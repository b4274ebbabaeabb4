// SPDX-License-Identifier: GPL-2.0
/*
 * What the kernel's Rust bindings of Linux 7.3 have no counterpart for: files of /proc, page
 * protections, the address of a page, siginfo. Nothing is decided here.
 */
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/proc_fs.h>
#include <linux/sched/signal.h>
#include <linux/vmalloc.h>

#include "shim.h"
#include "trace.h"

static void *entry_of(struct file *file)
{
	return pde_data(file_inode(file));
}

static int file_open(struct inode *inode, struct file *file)
{
	return tofu_rs_open(pde_data(inode), &file->private_data);
}

static int file_release(struct inode *inode, struct file *file)
{
	/* When the driver goes, files are released that are still mapped. */
	unmap_mapping_range(file->f_mapping, 0, 0, 1);
	tofu_rs_release(pde_data(inode), file->private_data);
	return 0;
}

static long file_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return tofu_rs_ioctl(entry_of(file), file->private_data, cmd, arg);
}

static ssize_t file_read(struct file *file, char __user *buf, size_t len, loff_t *pos)
{
	return tofu_rs_read(entry_of(file), file->private_data, buf, len, pos);
}

static int file_mmap(struct file *file, struct vm_area_struct *vma)
{
	return tofu_rs_mmap(entry_of(file), file->private_data, vma,
			    vma->vm_pgoff << PAGE_SHIFT, vma->vm_end - vma->vm_start,
			    vma->vm_flags & VM_SHARED, vma->vm_flags & VM_WRITE);
}

static const struct proc_ops file_ops = {
	.proc_open = file_open,
	.proc_release = file_release,
	.proc_ioctl = file_ioctl,
	.proc_read = file_read,
	.proc_lseek = default_llseek,
	.proc_mmap = file_mmap,
};

struct proc_dir_entry *tofu_shim_proc_folder(const char *name, struct proc_dir_entry *parent)
{
	return proc_mkdir(name, parent);
}

struct proc_dir_entry *tofu_shim_proc_file(const char *name, umode_t mode,
					   struct proc_dir_entry *parent, void *entry)
{
	return proc_create_data(name, mode, parent, &file_ops, entry);
}

void tofu_shim_proc_remove(struct proc_dir_entry *entry)
{
	proc_remove(entry);
}

int tofu_shim_map_registers(struct vm_area_struct *vma, phys_addr_t addr, unsigned long len)
{
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	/* A child of the process has no business with its queue. */
	vm_flags_set(vma, VM_DONTCOPY);
	return io_remap_pfn_range(vma, vma->vm_start, addr >> PAGE_SHIFT, len, vma->vm_page_prot);
}

int tofu_shim_map_table(struct vm_area_struct *vma, void *table)
{
	vm_flags_mod(vma, VM_DONTCOPY, VM_MAYWRITE);
	return remap_vmalloc_range(vma, table, 0);
}

void *tofu_shim_table_alloc(unsigned long len)
{
	return vmalloc_user(len);
}

void tofu_shim_table_free(void *table)
{
	vfree(table);
}

phys_addr_t tofu_shim_page_phys(struct page *page)
{
	return page_to_phys(page);
}

void *tofu_shim_page_address(struct page *page)
{
	return page_address(page);
}

unsigned long tofu_shim_total_pages(void)
{
	return totalram_pages();
}

void tofu_shim_pinned_account(struct mm_struct *mm, long pages)
{
	atomic64_add(pages, &mm->pinned_vm);
}

struct pid *tofu_shim_current_pid(void)
{
	return get_pid(task_tgid(current));
}

void tofu_shim_signal(struct pid *pid, int signo, int code, int value)
{
	struct kernel_siginfo info;
	struct task_struct *task;

	clear_siginfo(&info);
	info.si_signo = signo;
	info.si_errno = code;
	/* With this code si_int gets to the handler. */
	info.si_code = SI_QUEUE;
	info.si_int = value;
	rcu_read_lock();
	task = pid_task(pid, PIDTYPE_TGID);
	if (task)
		send_sig_info(signo, &info, task);
	rcu_read_unlock();
}

void tofu_shim_trace_gate_fault(u8 tni, u8 bg, u32 channel, u64 requests)
{
	trace_tofu_gate_fault(tni, bg, channel, requests);
}
