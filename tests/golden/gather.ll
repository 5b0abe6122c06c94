target triple = "x86_64-unknown-linux-gnu"

define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %v4 = getelementptr i8, ptr %args, i64 8
  %v5 = load ptr, ptr %v4
  %v6 = load ptr, ptr %args
  br label %b1
b1:
  %i3 = phi i64 [ 0, %entry ], [ %v22, %b1 ]
  %v7 = add i64 %i3, 1
  %v8 = urem i64 %v7, 3
  %v9 = getelementptr [4 x i8], ptr %v6, i64 %v8
  %v21 = getelementptr [16 x i8], ptr %v5, i64 %i3
  %v10 = load float, ptr %v9, align 4
  %v11 = insertelement <4 x float> poison, float %v10, i64 0
  %v12 = getelementptr i8, ptr %v9, i64 12
  %v13 = load float, ptr %v12, align 4
  %v14 = insertelement <4 x float> %v11, float %v13, i64 1
  %v15 = getelementptr i8, ptr %v9, i64 24
  %v16 = load float, ptr %v15, align 4
  %v17 = insertelement <4 x float> %v14, float %v16, i64 2
  %v18 = getelementptr i8, ptr %v9, i64 36
  %v19 = load float, ptr %v18, align 4
  %v20 = insertelement <4 x float> %v17, float %v19, i64 3
  store <4 x float> %v20, ptr %v21, align 4
  %v22 = add nuw nsw i64 %i3, 1
  %v23 = icmp ne i64 %v22, 4
  br i1 %v23, label %b1, label %b2
b2:
  ret void
}
