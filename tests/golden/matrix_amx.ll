target triple = "x86_64-unknown-linux-gnu"

; iterations 0 .. 1 in parallel
define void @k_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %m1 = alloca [64 x i8], align 64
  %v6 = load ptr, ptr %args
  %v9 = getelementptr i8, ptr %args, i64 8
  %v10 = load ptr, ptr %v9
  %v11 = getelementptr i8, ptr %args, i64 16
  %v12 = load ptr, ptr %v11
  store <8 x i64> <i64 1, i64 0, i64 34361049108, i64 0, i64 0, i64 0, i64 197123, i64 0>, ptr %m1, align 64
  call void @llvm.x86.ldtilecfg(ptr %m1)
  %v4 = icmp slt i64 %begin, %end
  br i1 %v4, label %b2, label %b3
b2:
  %i5 = phi i64 [ %begin, %entry ], [ %v15, %b2 ]
  %v7 = getelementptr [24 x i8], ptr %v6, i64 %i5
  %v8 = call ptr @llvm.ptrmask.p0.i64(ptr %v7, i64 -1)
  %v13 = getelementptr [60 x i8], ptr %v12, i64 %i5
  %v14 = call ptr @llvm.ptrmask.p0.i64(ptr %v13, i64 -1)
  call void @llvm.x86.tilezero(i8 0)
  call void @llvm.x86.tileloadd64(i8 2, ptr %v8, i64 8)
  call void @llvm.x86.tileloadd64(i8 1, ptr %v10, i64 20)
  call void @llvm.x86.tdpbusd(i8 0, i8 2, i8 1)
  call void @llvm.x86.tilestored64(i8 0, ptr %v14, i64 20)
  %v15 = add nuw nsw i64 %i5, 1
  %v16 = icmp ne i64 %v15, %end
  br i1 %v16, label %b2, label %b3
b3:
  call void @llvm.x86.tilerelease()
  ret void
}
