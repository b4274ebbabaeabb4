# Boot stub, interrupt stubs and ring-0 services. All ring-0 code of a program is
# in this file and is kept short: on a PVM host each instruction of it is
# emulated, at about 0.3 us.

.equ KERNEL_CS,   0x10
.equ KERNEL_DS,   0x18
.equ USER_SS,     0x28 | 3
.equ USER_CS,     0x30 | 3
.equ TSS,         0x38
.equ LAPIC,       0xfee00000
.equ LAPIC_SVR,   0xfee000f0
# The local APIC once more, at an address that fits into an instruction, so that a register is
# written by one instruction. There is no memory at this address in any machine.
.equ LOW_PAGE,    0xa0
.equ LOW_EOI,     0xa00b0
.equ LOW_COUNT,   0xa0380
# Where the machine monitor puts what an image finds: see `loader`.
.equ START_GDT,   0x500
.equ START_IDT,   0x520
.equ START_PAGE_TABLES, 0x9000
.equ START_STACK_TOP, 0x18000
# IOPL 3, interrupts on, the reserved bit.
.equ USER_FLAGS,  0x3202
.equ QUIET_FLAGS, 0x3002

# ---- Entry: 64-bit mode, RSI = Linux boot parameters, identity-mapped memory.
.section .text._start, "ax"
.code64
.global _start
_start:
    mov [boot_params], rsi
    lea rax, [pml4]
    mov cr3, rax
    # SSE: EM off, MP and NE on; OSFXSR and OSXMMEXCPT on.
    mov rax, cr0
    and eax, ~4
    or eax, 0x22
    mov cr0, rax
    mov rax, cr4
    or eax, 0x600
    mov cr4, rax
    # The TSS descriptor holds its base in pieces that no relocation can fill.
    lea rax, [tss]
    mov [gdt + TSS + 2], ax
    shr rax, 16
    mov [gdt + TSS + 4], al
    mov [gdt + TSS + 7], ah
    lgdt [gdt_pointer]
    lidt [idt_pointer]
    mov eax, TSS
    ltr ax
    # Local APIC on, spurious vector 255.
    mov eax, LAPIC_SVR
    mov dword ptr [rax], 0x1ff
    lea rsp, [ring0_stack_top]
    push USER_SS
    lea rax, [stack_top - 8]
    push rax
    push USER_FLAGS
    push USER_CS
    lea rax, [ring3_start]
    push rax
    iretq

# ---- Entry by a PVH loader (QEMU's -kernel): 32-bit mode without paging, EBX = start information.
# The memory map and the command line are brought into the form of the boot parameters later.
.section .note.Xen, "a", @note
.p2align 2
    .long 4, 8, 18              # name, value, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad pvh_start
.text
.code32
pvh_start:
    cld
    mov esp, offset ring0_stack_top
    mov [pvh_info], ebx
    # QEMU has start information in page 0, which is not mapped any more when it is read.
    xor esi, esi
    mov edi, offset pvh_page_0
    mov ecx, 1024
    rep movsd
    # The BIOS has left the PIC's timer on, at the vector of an exception: all masked.
    mov al, 0xff
    out 0x21, al
    out 0xa1, al
    lgdt [gdt_pointer]
    mov eax, 0x20               # PAE
    mov cr4, eax
    mov eax, offset pml4
    mov cr3, eax
    mov ecx, 0xc0000080         # EFER
    rdmsr
    or eax, 0x100               # long mode
    wrmsr
    mov eax, cr0
    or eax, 0x80000001          # paging
    mov cr0, eax
    mov eax, KERNEL_CS
    push eax
    mov eax, offset pvh_long
    push eax
    retf
.code64
pvh_long:
    mov eax, KERNEL_DS
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov fs, eax
    mov gs, eax
    lea rsi, [pvh_zero_page]
    jmp _start

# ---- Exceptions: note what happened, report it from ring 3.
.text
.p2align 4
.global exception_stubs
exception_stubs:
.set vector, 0
.rept 32
    .p2align 4
    # Vectors that come with an error code of their own.
    .if (1 << vector) & 0x60227d00
    .else
    push 0
    .endif
    push vector
    jmp exception
    .set vector, vector + 1
.endr

exception:
    pop qword ptr [exception_state]
    pop qword ptr [exception_state + 8]
    pop qword ptr [exception_state + 16]
    pop qword ptr [exception_state + 24]
    add rsp, 8
    pop qword ptr [exception_state + 32]
    mov rax, cr2
    mov [exception_state + 40], rax
    # As if the instruction at fault had called the report: frames of the stack go on there.
    mov rax, [exception_state + 16]
    mov [report_stack_top - 8], rax
    lea rsp, [ring0_stack_top]
    push USER_SS
    lea rax, [report_stack_top - 8]
    push rax
    push QUIET_FLAGS
    push USER_CS
    lea rax, [report_exception]
    push rax
    iretq

# ---- Interrupts: count, acknowledge. Vectors from FIRST_IRQ to 254; 255 is the
# local APIC's spurious vector, which must not be acknowledged.
.p2align 5
.global irq_stubs
irq_stubs:
.set vector, 0x2f
.rept 208
    .p2align 5
    inc qword ptr [irq_counts + 8 * vector]
    mov dword ptr [LOW_EOI], 0
    test byte ptr [rsp + 8], 3
    jz wait_over
    iretq
    .set vector, vector + 1
.endr
# An error if a stub is longer than IRQ_STUB_SIZE.
.org irq_stubs + 208 * 32

# Ring 0 takes interrupts in a wait only, which is over then. So its frame is the one to return
# from, and the interrupt's own is dropped. That needs no second return, and holds as well between
# `sti` and `hlt`, where a processor without the interrupt shadow (an emulator may lack it) would
# sleep through what it waits for.
wait_over:
    lea rsp, [ring0_stack_top - 40]
    iretq

.p2align 4
.global spurious_stub
spurious_stub:
    iretq

# ---- Services, called from ring 3 by `int3` with the service's address in rax.
# The breakpoint exception is the one software interrupt that every host passes
# on: PVM makes a #GP of the others, and SYSCALL does not arrive there.
.p2align 4
.global service_gate
service_gate:
    jmp rax

# Wait for an interrupt: returns at once if [rdi] != rsi, else after the next
# interrupt of any vector.
.p2align 4
.global service_wait
service_wait:
    cmp [rdi], rsi
    jne 1f
    sti
    hlt
1:  iretq

# The same with the local APIC timer set to edx ticks.
.p2align 4
.global service_wait_timer
service_wait_timer:
    mov [LOW_COUNT], edx
    jmp service_wait

# Write rcx bytes from rsi to port dx.
.p2align 4
.global service_out_bytes
service_out_bytes:
    rep outsb
    iretq

# Write edi to port dx.
.p2align 4
.global service_out32
service_out32:
    mov eax, edi
    out dx, eax
    iretq

# eax = read port dx.
.p2align 4
.global service_in32
service_in32:
    in eax, dx
    iretq

# Start an image in the state in which the machine monitor starts one: rdi = entry, rsi = boot
# parameters. GDT, IDT and page tables are where the monitor puts them (see `loader`); this code
# and its stack are mapped by those page tables, too. The selector of the code segment is the same.
.p2align 4
.global service_start
service_start:
    lgdt [start_gdt_pointer]
    lidt [start_idt_pointer]
    mov eax, START_PAGE_TABLES
    mov cr3, rax
    mov eax, 0x20
    mov cr4, rax
    mov eax, 0x80000011
    mov cr0, rax
    mov eax, KERNEL_DS
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov fs, eax
    mov gs, eax
    mov esp, START_STACK_TOP
    push 2
    popfq
    push rdi
    xor eax, eax
    xor ebx, ebx
    xor ecx, ecx
    xor edx, edx
    xor edi, edi
    xor ebp, ebp
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    xor r11d, r11d
    xor r12d, r12d
    xor r13d, r13d
    xor r14d, r14d
    xor r15d, r15d
    # Leaves the stack pointer as it was before the push.
    ret

# ---- Tables.
.section .data.page_tables, "aw"
# Present, writable, user, accessed, dirty.
.equ TABLE, 0x27
.equ SMALL, 0x67
.equ LARGE, 0xe7
.equ UNCACHED, 0x18
.p2align 12
.global pml4
pml4:
    .quad pdpt + TABLE
    .fill 511, 8, 0
pdpt:
    .quad directories + TABLE
    .quad directories + 0x1000 + TABLE
    .quad directories + 0x2000 + TABLE
    .quad directories + 0x3000 + TABLE
    .fill 508, 8, 0
.global directories
directories:
    # 2 MiB pages of the first 3 GiB, without the one below the image. Of the first one, 4 KiB
    # pages.
    .quad first_pages + TABLE
    .quad 0
    .set page, 2
    .rept 1534
    .quad page * 0x200000 + LARGE
    .set page, page + 1
    .endr
    # Devices.
    .rept 512
    .quad page * 0x200000 + LARGE + UNCACHED
    .set page, page + 1
    .endr

.p2align 12
.global first_pages
first_pages:
    # Without page 0, so that a null pointer leads nowhere.
    .quad 0
    .set page, 1
    .rept 511
    .if page == LOW_PAGE
    .quad LAPIC + SMALL + UNCACHED
    .else
    .quad page * 0x1000 + SMALL
    .endif
    .set page, page + 1
    .endr

.data
.p2align 4
gdt:
    .quad 0
    .quad 0
    .quad 0x00af9b000000ffff    # 0x10 ring 0 code, 64 bits
    .quad 0x00cf93000000ffff    # 0x18 ring 0 data
    .quad 0                     # 0x20
    .quad 0x00cff3000000ffff    # 0x28 ring 3 data
    .quad 0x00affb000000ffff    # 0x30 ring 3 code, 64 bits
    .quad 0x0000890000000067    # 0x38 TSS, base filled in at run time
    .quad 0
gdt_end:
gdt_pointer:
    .word gdt_end - gdt - 1
    .quad gdt
.p2align 3
idt_pointer:
    .word 256 * 16 - 1
    .quad idt
.p2align 4
tss:
    .long 0
    .quad ring0_stack_top
    .fill 90, 1, 0
    .word 104                   # I/O bitmap: none
.global boot_params
.p2align 3
boot_params:
    .quad 0
# Bytes of a loader's heap, 0 for other programs. The address of a symbol, which the compiler would
# take to be anything but 0.
.global loader_heap_size
loader_heap_size:
    .quad __loader_heap
# Start information of a PVH loader, 0 for none.
.global pvh_info
pvh_info:
    .quad 0
.p2align 3
start_gdt_pointer:
    .word 4 * 8 - 1
    .quad START_GDT
.p2align 3
start_idt_pointer:
    .word 7
    .quad START_IDT

.bss
.p2align 12
.global pvh_zero_page
pvh_zero_page:
    .skip 4096
.global pvh_page_0
pvh_page_0:
    .skip 4096
.p2align 12
.global idt
idt:
    .skip 4096
.global irq_counts
irq_counts:
    .skip 256 * 8
# Vector, error code, rip, cs, rsp, cr2.
.global exception_state
exception_state:
    .skip 48
.p2align 4
    .skip 4096
ring0_stack_top:
    .skip 8192
report_stack_top:

.section .stack, "aw", @nobits
.p2align 12
    .skip 256 * 1024
stack_top:
.text
