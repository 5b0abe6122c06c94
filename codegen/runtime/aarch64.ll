; What the pool needs to know of Linux on AArch64.

@futex_number = internal constant i64 98       ; the system call's number

declare void @llvm.aarch64.isb(i32)

; Tell the core that this is a spin loop. `isb sy` (15) waits tens of cycles, as `pause` does on x86-64; `yield` is
; a no-op on most of these cores.
define internal void @relax() alwaysinline nounwind {
  call void @llvm.aarch64.isb(i32 15)
  ret void
}
