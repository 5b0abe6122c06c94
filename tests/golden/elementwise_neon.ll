target triple = "aarch64-unknown-linux-gnu"

; iterations 0 .. 7 in parallel
define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %v8 = getelementptr i8, ptr %args, i64 16
  %v9 = load ptr, ptr %v8
  %v10 = load ptr, ptr %args
  %v14 = getelementptr i8, ptr %args, i64 8
  %v15 = load ptr, ptr %v14
  %v34 = getelementptr i8, ptr %args, i64 24
  %v35 = load ptr, ptr %v34
  %v3 = icmp slt i64 %begin, %end
  br i1 %v3, label %b1, label %b2
b1:
  %i4 = phi i64 [ %begin, %entry ], [ %v46, %b6 ]
  %v11 = getelementptr [204 x i8], ptr %v10, i64 %i4
  %v20 = getelementptr [204 x i8], ptr %v9, i64 %i4
  %v43 = getelementptr [3 x i8], ptr %v35, i64 %i4
  br label %b5
b5:
  %i7 = phi i64 [ 0, %b1 ], [ %v22, %b5 ]
  %v12 = getelementptr [64 x i8], ptr %v11, i64 %i7
  %v16 = getelementptr [64 x i8], ptr %v15, i64 %i7
  %v21 = getelementptr [64 x i8], ptr %v20, i64 %i7
  %v13 = load <16 x float>, ptr %v12, align 4
  %v17 = load <16 x float>, ptr %v16, align 4
  %v18 = fmul <16 x float> %v13, %v17
  %v19 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v18, <16 x float> splat (float 0x0000000000000000))
  store <16 x float> %v19, ptr %v21, align 4
  %v22 = add nuw nsw i64 %i7, 1
  %v23 = icmp ne i64 %v22, 3
  br i1 %v23, label %b5, label %b6
b6:
  %v24 = getelementptr i8, ptr %v11, i64 192
  %v25 = load <3 x float>, ptr %v24, align 4
  %v26 = shufflevector <3 x float> %v25, <3 x float> zeroinitializer, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3>
  %v27 = getelementptr i8, ptr %v15, i64 192
  %v28 = load <3 x float>, ptr %v27, align 4
  %v29 = shufflevector <3 x float> %v28, <3 x float> zeroinitializer, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3>
  %v30 = fmul <16 x float> %v26, %v29
  %v31 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v30, <16 x float> splat (float 0x0000000000000000))
  %v32 = getelementptr i8, ptr %v20, i64 192
  %v33 = shufflevector <16 x float> %v31, <16 x float> poison, <3 x i32> <i32 0, i32 1, i32 2>
  store <3 x float> %v33, ptr %v32, align 4
  %v36 = load <3 x float>, ptr %v24, align 4
  %v37 = shufflevector <3 x float> %v36, <3 x float> zeroinitializer, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3>
  %v38 = load <3 x float>, ptr %v27, align 4
  %v39 = shufflevector <3 x float> %v38, <3 x float> zeroinitializer, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3>
  %v40 = fmul <16 x float> %v37, %v39
  %v41 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v40, <16 x float> splat (float 0x0000000000000000))
  %v42 = fcmp olt <16 x float> %v37, %v41
  %v44 = zext <16 x i1> %v42 to <16 x i8>
  %v45 = shufflevector <16 x i8> %v44, <16 x i8> poison, <3 x i32> <i32 0, i32 1, i32 2>
  store <3 x i8> %v45, ptr %v43, align 1
  %v46 = add nuw nsw i64 %i4, 1
  %v47 = icmp ne i64 %v46, %end
  br i1 %v47, label %b1, label %b2
b2:
  ret void
}
