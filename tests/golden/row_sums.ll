target triple = "x86_64-unknown-linux-gnu"

; iterations 0 .. 7 in parallel
define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %m5 = alloca [64 x float], align 64
  %m6 = alloca [1 x float], align 64
  %v10 = load ptr, ptr %args
  %v27 = getelementptr i8, ptr %args, i64 16
  %v28 = load ptr, ptr %v27
  %v3 = icmp slt i64 %begin, %end
  br i1 %v3, label %b1, label %b2
b1:
  %i4 = phi i64 [ %begin, %entry ], [ %v32, %b8 ]
  %v11 = getelementptr [256 x i8], ptr %v10, i64 %i4
  %v12 = call ptr @llvm.ptrmask.p0.i64(ptr %v11, i64 -1)
  %v30 = getelementptr [4 x i8], ptr %v28, i64 %i4
  %v31 = call ptr @llvm.ptrmask.p0.i64(ptr %v30, i64 -1)
  call void @llvm.lifetime.start.p0(ptr %m5)
  store float 0x0000000000000000, ptr %m6, align 4
  br label %b7
b7:
  %i9 = phi i64 [ 0, %b1 ], [ %v25, %b20 ]
  %v13 = getelementptr [64 x i8], ptr %v12, i64 %i9
  %v14 = call ptr @llvm.ptrmask.p0.i64(ptr %v13, i64 -1)
  %v16 = getelementptr [64 x i8], ptr %m5, i64 %i9
  %v17 = call ptr @llvm.ptrmask.p0.i64(ptr %v16, i64 -1)
  %v18 = icmp slt i64 %i9, 3
  %v15 = load <16 x float>, ptr %v14, align 4
  store <16 x float> %v15, ptr %v17, align 4
  br i1 %v18, label %b19, label %b20
b19:
  %v21 = load float, ptr %m6, align 4
  %v22 = load <16 x float>, ptr %v17, align 4
  %v23 = call reassoc float @llvm.vector.reduce.fadd.v16f32(float 0x8000000000000000, <16 x float> %v22)
  %v24 = fadd float %v21, %v23
  store float %v24, ptr %m6, align 4
  br label %b20
b20:
  %v25 = add nuw nsw i64 %i9, 1
  %v26 = icmp ne i64 %v25, 4
  br i1 %v26, label %b7, label %b8
b8:
  %v29 = load float, ptr %m6, align 4
  store float %v29, ptr %v31, align 4
  call void @llvm.lifetime.end.p0(ptr %m5)
  %v32 = add nuw nsw i64 %i4, 1
  %v33 = icmp ne i64 %v32, %end
  br i1 %v33, label %b1, label %b2
b2:
  ret void
}

define void @kernel_p1(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %v1 = getelementptr i8, ptr %args, i64 8
  %v2 = load ptr, ptr %v1
  %v3 = getelementptr i8, ptr %args, i64 16
  %v4 = load ptr, ptr %v3
  %v5 = load <8 x float>, ptr %v4, align 4
  %v6 = fcmp uno <8 x float> %v5, %v5
  %v7 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %v6)
  %v8 = call nnan nsz float @llvm.vector.reduce.fmax.v8f32(<8 x float> %v5)
  %v9 = select i1 %v7, float 0x7FF8000000000000, float %v8
  store float %v9, ptr %v2, align 4
  ret void
}
