target triple = "x86_64-unknown-linux-gnu"

; iterations 0 .. 7 in parallel
define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %m5 = alloca [64 x float], align 64
  %m6 = alloca [1 x float], align 64
  %v10 = load ptr, ptr %args
  %v24 = getelementptr i8, ptr %args, i64 16
  %v25 = load ptr, ptr %v24
  %v3 = icmp slt i64 %begin, %end
  br i1 %v3, label %b1, label %b2
b1:
  %i4 = phi i64 [ %begin, %entry ], [ %v28, %b8 ]
  %v11 = getelementptr [256 x i8], ptr %v10, i64 %i4
  %v27 = getelementptr [4 x i8], ptr %v25, i64 %i4
  call void @llvm.lifetime.start.p0(ptr %m5)
  store float 0x0000000000000000, ptr %m6, align 4
  br label %b7
b7:
  %i9 = phi i64 [ 0, %b1 ], [ %v22, %b17 ]
  %v12 = getelementptr [64 x i8], ptr %v11, i64 %i9
  %v14 = getelementptr [64 x i8], ptr %m5, i64 %i9
  %v15 = icmp slt i64 %i9, 3
  %v13 = load <16 x float>, ptr %v12, align 4
  store <16 x float> %v13, ptr %v14, align 4
  br i1 %v15, label %b16, label %b17
b16:
  %v18 = load float, ptr %m6, align 4
  %v19 = load <16 x float>, ptr %v14, align 4
  %v20 = call reassoc float @llvm.vector.reduce.fadd.v16f32(float 0x8000000000000000, <16 x float> %v19)
  %v21 = fadd float %v18, %v20
  store float %v21, ptr %m6, align 4
  br label %b17
b17:
  %v22 = add nuw nsw i64 %i9, 1
  %v23 = icmp ne i64 %v22, 4
  br i1 %v23, label %b7, label %b8
b8:
  %v26 = load float, ptr %m6, align 4
  store float %v26, ptr %v27, align 4
  call void @llvm.lifetime.end.p0(ptr %m5)
  %v28 = add nuw nsw i64 %i4, 1
  %v29 = icmp ne i64 %v28, %end
  br i1 %v29, label %b1, label %b2
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
