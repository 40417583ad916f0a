# The entry point of cni-plugins and cnitool, by link/build.rs. It leaves the stack, where the arguments are, as it is.
.section .text.cnikit_start, "ax", @progbits
.globl cnikit_start
.hidden cnikit_start
.type cnikit_start, @function
.weak _DYNAMIC # a program at a fixed address has none, and another entry point
cnikit_start:
    # The pages with pointers, which begin with the initializers and end where the data without a value does: one system call
    # instead of a page fault for each.
    lea rdi, [rip + __init_array_start]
    and rdi, -{page}
    lea rsi, [rip + __bss_start]
    sub rsi, rdi
    mov edx, {populate}
    mov eax, {madvise}
    syscall

    # r8: where the program is. r9: its table of relocations, and r10: the table's length. If there is none, it has no bytes.
    lea r8, [rip + __ehdr_start]
    xor r9d, r9d
    xor r10d, r10d
    lea rax, [rip + _DYNAMIC]
20: mov rcx, [rax]
    test rcx, rcx
    jz 40f
    cmp rcx, {dt_relr}
    jne 30f
    mov r9, [rax + 8]
30: cmp rcx, {dt_relrsz}
    jne 31f
    mov r10, [rax + 8]
    mov qword ptr [rax + 8], 0 # for musl
31: add rax, 16
    jmp 20b
40: add r9, r8
    add r10, r9

    # Each entry is the address of a word with a pointer, or if its lowest bit is set a bitmap of the words that follow.
    # rdi: the word that the next bitmap begins with.
50: cmp r9, r10
    jae 80f
    mov rax, [r9]
    add r9, 8
    test al, 1
    jnz 60f
    lea rdi, [rax + r8]
    add [rdi], r8
    add rdi, 8
    jmp 50b
60: shr rax
70: bsf rcx, rax # the lowest bit that is set, if there is one
    jz 71f
    add [rdi + 8*rcx], r8
    lea rdx, [rax - 1]
    and rax, rdx # without that bit
    jmp 70b
71: add rdi, {of_a_bitmap}
    jmp 50b

    # The kernel starts a program with zero in rdx: no function has to be called at the end.
80: xor edx, edx
    jmp _start
.size cnikit_start, . - cnikit_start
.text
