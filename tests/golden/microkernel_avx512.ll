target triple = "x86_64-unknown-linux-gnu"

define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %v4 = load ptr, ptr %args
  %v5 = getelementptr i8, ptr %args, i64 8
  %v6 = load ptr, ptr %v5
  %v7 = getelementptr i8, ptr %args, i64 16
  %v8 = load ptr, ptr %v7
  br label %b1
b1:
  %i3 = phi i64 [ 0, %entry ], [ %v13, %b1 ]
  %v9 = udiv i64 %i3, 4
  %v10 = mul i64 %v9, 4
  %v11 = urem i64 %i3, 4
  %v12 = add i64 %v10, %v11
  call void @kernel_m0(ptr %v4, ptr %v6, ptr %v8, i64 %v12)
  %v13 = add nuw nsw i64 %i3, 1
  %v14 = icmp ne i64 %v13, 12
  br i1 %v14, label %b1, label %b2
b2:
  ret void
}

define void @kernel_m0(ptr %p0, ptr %p1, ptr %p2, i64 %x0) nounwind {
entry:
  %m1 = alloca [16 x float], align 64
  %v8 = getelementptr [256 x i8], ptr %p0, i64 %x0
  %v9 = call ptr @llvm.ptrmask.p0.i64(ptr %v8, i64 -1)
  %v21 = getelementptr [64 x i8], ptr %p2, i64 %x0
  %v22 = call ptr @llvm.ptrmask.p0.i64(ptr %v21, i64 -1)
  store <16 x float> splat (float 0x0000000000000000), ptr %m1, align 4
  br label %b2
b2:
  %i4 = phi i64 [ 0, %entry ], [ %v18, %b2 ]
  %v5 = getelementptr [64 x i8], ptr %p1, i64 %i4
  %v6 = call ptr @llvm.ptrmask.p0.i64(ptr %v5, i64 -1)
  %v10 = getelementptr [4 x i8], ptr %v9, i64 %i4
  %v11 = call ptr @llvm.ptrmask.p0.i64(ptr %v10, i64 -1)
  %v7 = getelementptr i8, ptr %v6, i64 256
  call void @llvm.prefetch.p0(ptr %v7, i32 0, i32 3, i32 1)
  %v12 = load float, ptr %v11, align 4
  %v13 = load <16 x float>, ptr %v6, align 4
  %v14 = load <16 x float>, ptr %m1, align 4
  %v15 = insertelement <16 x float> poison, float %v12, i64 0
  %v16 = shufflevector <16 x float> %v15, <16 x float> poison, <16 x i32> zeroinitializer
  %v17 = call <16 x float> @llvm.fmuladd.v16f32(<16 x float> %v16, <16 x float> %v13, <16 x float> %v14)
  store <16 x float> %v17, ptr %m1, align 4
  %v18 = add nuw nsw i64 %i4, 1
  %v19 = icmp ne i64 %v18, 64
  br i1 %v19, label %b2, label %b3
b3:
  %v20 = load <16 x float>, ptr %m1, align 4
  store <16 x float> %v20, ptr %v22, align 4
  ret void
}
