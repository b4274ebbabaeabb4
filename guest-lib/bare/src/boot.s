# Boot stub, interrupt stubs and ring-0 services. All ring-0 code of a program is
# in this file and is kept short: on a PVM host each instruction of it is
# emulated, at about 0.3 us.

.equ KERNEL_CS,   0x10
.equ USER_SS,     0x28 | 3
.equ USER_CS,     0x30 | 3
.equ TSS,         0x38
.equ LAPIC_EOI,   0xfee000b0
.equ LAPIC_SVR,   0xfee000f0
.equ LAPIC_COUNT, 0xfee00380
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
    jmp irq
    .set vector, vector + 1
.endr

irq:
    push rax
    mov eax, LAPIC_EOI
    mov dword ptr [rax], 0
    pop rax
    # Between `sti` and `hlt` of a wait: without the processor's interrupt shadow
    # (an emulator may lack it) `hlt` would sleep through what it waits for.
    cmp dword ptr [rsp], offset wait_halt
    je 1f
    iretq
1:  inc dword ptr [rsp]
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
wait_halt:
    hlt
1:  iretq

# The same with the local APIC timer set to edx ticks.
.p2align 4
.global service_wait_timer
service_wait_timer:
    mov eax, LAPIC_COUNT
    mov [rax], edx
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

# ---- Tables.
.section .data.page_tables, "aw"
# Present, writable, user, accessed, dirty.
.equ TABLE, 0x27
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
directories:
    # 2 MiB pages of the first 3 GiB, without the one below the image.
    .quad LARGE
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

.bss
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
