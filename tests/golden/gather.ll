target triple = "x86_64-unknown-linux-gnu"

define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %v4 = getelementptr i8, ptr %args, i64 8
  %v5 = load ptr, ptr %v4
  %v6 = load ptr, ptr %args
  br label %b1
b1:
  %i3 = phi i64 [ 0, %entry ], [ %v24, %b1 ]
  %v7 = add i64 %i3, 1
  %v8 = urem i64 %v7, 3
  %v9 = getelementptr [4 x i8], ptr %v6, i64 %v8
  %v10 = call ptr @llvm.ptrmask.p0.i64(ptr %v9, i64 -1)
  %v22 = getelementptr [16 x i8], ptr %v5, i64 %i3
  %v23 = call ptr @llvm.ptrmask.p0.i64(ptr %v22, i64 -1)
  %v11 = load float, ptr %v10, align 4
  %v12 = insertelement <4 x float> poison, float %v11, i64 0
  %v13 = getelementptr i8, ptr %v10, i64 12
  %v14 = load float, ptr %v13, align 4
  %v15 = insertelement <4 x float> %v12, float %v14, i64 1
  %v16 = getelementptr i8, ptr %v10, i64 24
  %v17 = load float, ptr %v16, align 4
  %v18 = insertelement <4 x float> %v15, float %v17, i64 2
  %v19 = getelementptr i8, ptr %v10, i64 36
  %v20 = load float, ptr %v19, align 4
  %v21 = insertelement <4 x float> %v18, float %v20, i64 3
  store <4 x float> %v21, ptr %v23, align 4
  %v24 = add nuw nsw i64 %i3, 1
  %v25 = icmp ne i64 %v24, 4
  br i1 %v25, label %b1, label %b2
b2:
  ret void
}
