// SPDX-License-Identifier: GPL-2.0
/*
 * What the kernel's Rust bindings of Linux 7.3 have no counterpart for: files of /proc, page
 * protections, the address of a page, siginfo, resets and suspends, devlink. Nothing is decided
 * here.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pid.h>
#include <linux/pm.h>
#include <linux/proc_fs.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>
#include <net/devlink.h>

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

/* As remap_vmalloc_range(), which takes only what vmalloc_user() allocates: that is nobody's. */
int tofu_shim_map_table(struct vm_area_struct *vma, void *table)
{
	unsigned long addr;
	int error = 0;

	vm_flags_mod(vma, VM_DONTCOPY, VM_MAYWRITE);
	for (addr = vma->vm_start; !error && addr < vma->vm_end; addr += PAGE_SIZE)
		error = vm_insert_page(vma, addr, vmalloc_to_page(table + (addr - vma->vm_start)));
	return error;
}

void *tofu_shim_table_alloc(unsigned long len)
{
	return __vmalloc(len, GFP_KERNEL_ACCOUNT | __GFP_ZERO);
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

int tofu_shim_charge(const struct cred *cred, unsigned long pages, unsigned long most)
{
	atomic_long_t *locked = &cred->user->locked_vm;
	long limit = min(rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT, most);
	long before = atomic_long_read(locked), after;

	do {
		after = before + pages;
		if (after > limit && !capable(CAP_IPC_LOCK))
			return -ENOMEM;
	} while (!atomic_long_try_cmpxchg(locked, &before, after));
	return 0;
}

void tofu_shim_uncharge(const struct cred *cred, unsigned long pages)
{
	atomic_long_sub(pages, &cred->user->locked_vm);
}

void tofu_shim_pinned_account(struct mm_struct *mm, long pages)
{
	atomic64_add(pages, &mm->pinned_vm);
}

struct pid *tofu_shim_current_pid(void)
{
	return get_pid(task_tgid(current));
}

const struct cred *tofu_shim_current_cred(void)
{
	return get_current_cred();
}

bool tofu_shim_is_current_cred(const struct cred *cred)
{
	const struct cred *now = current_cred();

	return cred == now ||
	       (uid_eq(cred->uid, now->uid) && uid_eq(cred->euid, now->euid) &&
		uid_eq(cred->suid, now->suid) && cred->user_ns == now->user_ns);
}

/* What kill(2) wants, as for the signals of other drivers that come later (kill_as_cred_perm()). */
static bool may_signal(const struct cred *cred, struct task_struct *task)
{
	const struct cred *to = __task_cred(task);

	return uid_eq(cred->euid, to->suid) || uid_eq(cred->euid, to->uid) ||
	       uid_eq(cred->uid, to->suid) || uid_eq(cred->uid, to->uid);
}

static bool is_handled(struct task_struct *task, int signo)
{
	struct sighand_struct *sighand = rcu_dereference(task->sighand);

	return sighand && READ_ONCE(sighand->action[signo - 1].sa.sa_handler) != SIG_DFL;
}

void tofu_shim_signal(struct pid *pid, const struct mm_struct *mm, const struct cred *cred,
		      int signo, int code, int value, bool if_handled)
{
	struct task_struct *leader, *task;
	struct kernel_siginfo info;

	clear_siginfo(&info);
	info.si_signo = signo;
	info.si_errno = code;
	/* With this code si_int gets to the handler. */
	info.si_code = SI_QUEUE;
	info.si_int = value;
	rcu_read_lock();
	leader = pid_task(pid, PIDTYPE_TGID);
	if (leader) {
		/* The first thread that has not ended. After exec it has other memory. */
		for_each_thread(leader, task) {
			if (READ_ONCE(task->mm) != mm)
				continue;
			if (may_signal(cred, task) && (!if_handled || is_handled(task, signo)))
				send_sig_info(signo, &info, task);
			break;
		}
	}
	rcu_read_unlock();
}

void tofu_shim_trace_gate_fault(u8 tni, u8 bg, u32 channel, u64 requests)
{
	trace_tofu_gate_fault(tni, bg, channel, requests);
}

/*
 * Who is told of resets of which function. The kernel holds the function's lock during all of these
 * calls, as it does when the driver takes the function and leaves it.
 */
static struct {
	struct pci_dev *pdev;
	void *data;
	/* The configuration when the driver had set it up; NULL without memory. */
	struct pci_saved_state *saved;
	/* NULL if the kernel has no memory for them. */
	struct devlink *devlink;
	struct devlink_health_reporter *reporter;
} watched;

static void look(struct work_struct *work);
static DECLARE_DELAYED_WORK(looks, look);

/* Not while the system is suspended. */
static void look_later(void)
{
	queue_delayed_work(system_freezable_wq, &looks, round_jiffies_relative(HZ));
}

static void look(struct work_struct *work)
{
	struct pci_dev *pdev = watched.pdev;

	/* Who has the lock resets the function, or takes it away and waits for this work. */
	if (device_trylock(&pdev->dev)) {
		tofu_rs_look(watched.data);
		device_unlock(&pdev->dev);
	}
	look_later();
}

bool tofu_shim_is_awake(struct pci_dev *pdev)
{
	u16 vendor, control = PCI_D0;

	pci_read_config_word(pdev, PCI_VENDOR_ID, &vendor);
	if (pdev->pm_cap)
		pci_read_config_word(pdev, pdev->pm_cap + PCI_PM_CTRL, &control);
	return vendor == pdev->vendor && (control & PCI_PM_CTRL_STATE_MASK) == PCI_D0 &&
	       !pci_channel_offline(pdev);
}

bool tofu_shim_is_pulled_out(struct pci_dev *pdev)
{
	return READ_ONCE(pdev->error_state) == pci_channel_io_perm_failure;
}

static void reset_prepare(struct pci_dev *pdev)
{
	if (pdev == watched.pdev)
		tofu_rs_reset_prepare(watched.data);
}

static void reset_done(struct pci_dev *pdev)
{
	if (pdev == watched.pdev)
		tofu_rs_reset_done(watched.data);
}

static pci_ers_result_t error_detected(struct pci_dev *pdev, pci_channel_state_t state)
{
	reset_prepare(pdev);
	if (state == pci_channel_io_perm_failure)
		return PCI_ERS_RESULT_DISCONNECT;
	return PCI_ERS_RESULT_NEED_RESET;
}

static pci_ers_result_t slot_reset(struct pci_dev *pdev)
{
	pci_restore_state(pdev);
	if (pci_reenable_device(pdev))
		return PCI_ERS_RESULT_DISCONNECT;
	pci_set_master(pdev);
	return PCI_ERS_RESULT_RECOVERED;
}

static const struct pci_error_handlers error_handlers = {
	.error_detected = error_detected,
	.slot_reset = slot_reset,
	.resume = reset_done,
	.reset_prepare = reset_prepare,
	.reset_done = reset_done,
};

static int suspend(struct device *dev)
{
	reset_prepare(to_pci_dev(dev));
	return 0;
}

/* It may have kept its state or lost it. Where it cannot be reset, it is taken as it is. */
static void reset_anew(struct pci_dev *pdev)
{
	if (pci_reset_function_locked(pdev))
		reset_done(pdev);
}

void tofu_shim_recover(struct pci_dev *pdev)
{
	if (watched.saved && !pci_load_saved_state(pdev, watched.saved))
		pci_restore_state(pdev);
	reset_anew(pdev);
}

static int resume(struct device *dev)
{
	reset_anew(to_pci_dev(dev));
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(pm_ops, suspend, resume);

/* Bytes of the longest report. */
#define TOFU_HEALTH SZ_16K

/* Each line of the report, by its first word. */
static int health_diagnose(struct devlink_health_reporter *reporter, struct devlink_fmsg *fmsg,
			   struct netlink_ext_ack *ack)
{
	char *text = kzalloc(TOFU_HEALTH, GFP_KERNEL), *rest = text, *line, *name;

	if (!text)
		return -ENOMEM;
	tofu_rs_health(devlink_health_reporter_priv(reporter), text, TOFU_HEALTH - 1);
	while ((line = strsep(&rest, "\n")) && *line) {
		name = strsep(&line, " ");
		devlink_fmsg_string_pair_put(fmsg, name, line ?: "");
	}
	kfree(text);
	return 0;
}

/* There is nothing to recover by hand: the driver does so as soon as the device answers. */
static const struct devlink_health_reporter_ops health_ops = {
	.name = "device",
	.diagnose = health_diagnose,
};

static const struct devlink_ops devlink_ops = {};

static void devlink_add(struct pci_dev *pdev, void *data)
{
	struct devlink_health_reporter *reporter;
	struct devlink *devlink;

	devlink = devlink_alloc(&devlink_ops, 0, &pdev->dev);
	if (!devlink)
		return;
	reporter = devlink_health_reporter_create(devlink, &health_ops, data);
	if (IS_ERR(reporter)) {
		devlink_free(devlink);
		return;
	}
	watched.devlink = devlink;
	watched.reporter = reporter;
	devlink_register(devlink);
}

static void devlink_remove(void)
{
	struct devlink *devlink = watched.devlink;

	if (!devlink)
		return;
	devlink_unregister(devlink);
	devlink_health_reporter_destroy(watched.reporter);
	watched.reporter = NULL;
	watched.devlink = NULL;
	devlink_free(devlink);
}

void tofu_shim_report(const char *what)
{
	if (watched.reporter)
		devlink_health_report(watched.reporter, what, NULL);
}

void tofu_shim_report_healthy(void)
{
	if (watched.reporter)
		devlink_health_reporter_state_update(watched.reporter,
						     DEVLINK_HEALTH_REPORTER_STATE_HEALTHY);
}

void tofu_shim_watch_resets(struct pci_dev *pdev, void *data)
{
	watched.pdev = pdev;
	watched.data = data;
	pci_save_state(pdev);
	watched.saved = pci_store_saved_state(pdev);
	/* A suspend saves anew. */
	pdev->state_saved = false;
	/* The bindings register a driver without these. */
	pdev->driver->err_handler = &error_handlers;
	pdev->driver->driver.pm = pm_sleep_ptr(&pm_ops);
	devlink_add(pdev, data);
	look_later();
}

void tofu_shim_unwatch_resets(void)
{
	cancel_delayed_work_sync(&looks);
	devlink_remove();
	watched.pdev = NULL;
	kfree(watched.saved);
	watched.saved = NULL;
}
