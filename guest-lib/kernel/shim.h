/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Between shim.c and the Rust side. Functions called tofu_shim_ are C and forward to the kernel;
 * those called tofu_rs_ are Rust and decide.
 */
#ifndef TOFU_SHIM_H
#define TOFU_SHIM_H

#include <linux/types.h>

struct cred;
struct file;
struct mm_struct;
struct page;
struct pci_dev;
struct pid;
struct proc_dir_entry;
struct vm_area_struct;

/* Files of /proc/tofu. @entry is what tofu_shim_proc_file() was given. */
int tofu_rs_open(void *entry, void **data);
void tofu_rs_release(void *entry, void *data);
long tofu_rs_ioctl(void *entry, void *data, unsigned int cmd, unsigned long arg);
ssize_t tofu_rs_read(void *entry, void *data, char __user *buf, size_t len, loff_t *pos);
int tofu_rs_mmap(void *entry, void *data, struct vm_area_struct *vma,
		 unsigned long offset, unsigned long len, bool shared, bool write);

struct proc_dir_entry *tofu_shim_proc_folder(const char *name, struct proc_dir_entry *parent);
struct proc_dir_entry *tofu_shim_proc_file(const char *name, umode_t mode,
					   struct proc_dir_entry *parent, void *entry);
void tofu_shim_proc_remove(struct proc_dir_entry *entry);

int tofu_shim_map_registers(struct vm_area_struct *vma, phys_addr_t addr, unsigned long len);
int tofu_shim_map_table(struct vm_area_struct *vma, void *table);
void *tofu_shim_table_alloc(unsigned long len);
void tofu_shim_table_free(void *table);

phys_addr_t tofu_shim_page_phys(struct page *page);
void *tofu_shim_page_address(struct page *page);
unsigned long tofu_shim_total_pages(void);
int tofu_shim_charge(const struct cred *cred, unsigned long pages, unsigned long most);
void tofu_shim_uncharge(const struct cred *cred, unsigned long pages);
void tofu_shim_pinned_account(struct mm_struct *mm, long pages);

struct pid *tofu_shim_current_pid(void);
const struct cred *tofu_shim_current_cred(void);
bool tofu_shim_is_current_cred(const struct cred *cred);
void tofu_shim_signal(struct pid *pid, const struct mm_struct *mm, const struct cred *cred,
		      int signo, int code, int value, bool if_handled);

/*
 * Resets and suspends of the function, @data being what tofu_shim_watch_resets() was given. _done
 * may follow several of _prepare, or none.
 */
void tofu_rs_reset_prepare(void *data);
void tofu_rs_reset_done(void *data);
/* Every second, with the function's lock held as in the others. */
void tofu_rs_look(void *data);
/* Writes the node's health, in lines of words; returns how many bytes that is. */
size_t tofu_rs_health(void *data, char *buf, size_t size);
void tofu_shim_watch_resets(struct pci_dev *pdev, void *data);
void tofu_shim_unwatch_resets(void);
/*
 * Tells devlink's health reporter that the device has failed, and that it has been reset. With the
 * function's lock held.
 */
void tofu_shim_report(const char *what);
void tofu_shim_report_healthy(void);
/*
 * Whether the function answers to configuration requests, and neither is in a state of low power
 * nor recovers from an error.
 */
bool tofu_shim_is_awake(struct pci_dev *pdev);
/* Whether the kernel has found the slot of the function empty. */
bool tofu_shim_is_pulled_out(struct pci_dev *pdev);
/* Gives the function its configuration back and resets it. For tofu_rs_look() only. */
void tofu_shim_recover(struct pci_dev *pdev);

void tofu_shim_trace_gate_fault(u8 tni, u8 bg, u32 channel, u64 requests);

#endif
