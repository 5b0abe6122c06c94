; What the pool needs to know of Linux on x86-64.

@futex_number = internal constant i64 202      ; the system call's number

declare void @llvm.x86.sse2.pause()

; Tell the core that this is a spin loop.
define internal void @relax() alwaysinline nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
