target triple = "aarch64-unknown-linux-gnu"

; iterations 0 .. 7 in parallel
define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %v8 = getelementptr i8, ptr %args, i64 16
  %v9 = load ptr, ptr %v8
  %v10 = load ptr, ptr %args
  %v16 = getelementptr i8, ptr %args, i64 8
  %v17 = load ptr, ptr %v16
  %v39 = getelementptr i8, ptr %args, i64 24
  %v40 = load ptr, ptr %v39
  %v3 = icmp slt i64 %begin, %end
  br i1 %v3, label %b1, label %b2
b1:
  %i4 = phi i64 [ %begin, %entry ], [ %v52, %b6 ]
  %v11 = getelementptr [204 x i8], ptr %v10, i64 %i4
  %v12 = call ptr @llvm.ptrmask.p0.i64(ptr %v11, i64 -1)
  %v23 = getelementptr [204 x i8], ptr %v9, i64 %i4
  %v24 = call ptr @llvm.ptrmask.p0.i64(ptr %v23, i64 -1)
  %v48 = getelementptr [3 x i8], ptr %v40, i64 %i4
  %v49 = call ptr @llvm.ptrmask.p0.i64(ptr %v48, i64 -1)
  br label %b5
b5:
  %i7 = phi i64 [ 0, %b1 ], [ %v27, %b5 ]
  %v13 = getelementptr [64 x i8], ptr %v12, i64 %i7
  %v14 = call ptr @llvm.ptrmask.p0.i64(ptr %v13, i64 -1)
  %v18 = getelementptr [64 x i8], ptr %v17, i64 %i7
  %v19 = call ptr @llvm.ptrmask.p0.i64(ptr %v18, i64 -1)
  %v25 = getelementptr [64 x i8], ptr %v24, i64 %i7
  %v26 = call ptr @llvm.ptrmask.p0.i64(ptr %v25, i64 -1)
  %v15 = load <16 x float>, ptr %v14, align 4
  %v20 = load <16 x float>, ptr %v19, align 4
  %v21 = fmul <16 x float> %v15, %v20
  %v22 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v21, <16 x float> splat (float 0x0000000000000000))
  store <16 x float> %v22, ptr %v26, align 4
  %v27 = add nuw nsw i64 %i7, 1
  %v28 = icmp ne i64 %v27, 3
  br i1 %v28, label %b5, label %b6
b6:
  %v29 = getelementptr i8, ptr %v12, i64 192
  %v30 = load <3 x float>, ptr %v29, align 4
  %v31 = shufflevector <3 x float> %v30, <3 x float> zeroinitializer, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3>
  %v32 = getelementptr i8, ptr %v17, i64 192
  %v33 = load <3 x float>, ptr %v32, align 4
  %v34 = shufflevector <3 x float> %v33, <3 x float> zeroinitializer, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3>
  %v35 = fmul <16 x float> %v31, %v34
  %v36 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v35, <16 x float> splat (float 0x0000000000000000))
  %v37 = getelementptr i8, ptr %v24, i64 192
  %v38 = shufflevector <16 x float> %v36, <16 x float> poison, <3 x i32> <i32 0, i32 1, i32 2>
  store <3 x float> %v38, ptr %v37, align 4
  %v41 = load <3 x float>, ptr %v29, align 4
  %v42 = shufflevector <3 x float> %v41, <3 x float> zeroinitializer, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3>
  %v43 = load <3 x float>, ptr %v32, align 4
  %v44 = shufflevector <3 x float> %v43, <3 x float> zeroinitializer, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3, i32 3>
  %v45 = fmul <16 x float> %v42, %v44
  %v46 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v45, <16 x float> splat (float 0x0000000000000000))
  %v47 = fcmp olt <16 x float> %v42, %v46
  %v50 = zext <16 x i1> %v47 to <16 x i8>
  %v51 = shufflevector <16 x i8> %v50, <16 x i8> poison, <3 x i32> <i32 0, i32 1, i32 2>
  store <3 x i8> %v51, ptr %v49, align 1
  %v52 = add nuw nsw i64 %i4, 1
  %v53 = icmp ne i64 %v52, %end
  br i1 %v53, label %b1, label %b2
b2:
  ret void
}
