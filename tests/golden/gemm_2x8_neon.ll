target triple = "aarch64-unknown-linux-gnu"

; iterations 0 .. 2 in parallel
define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %m8 = alloca [16 x float], align 64
  %v15 = load ptr, ptr %args
  %v19 = getelementptr i8, ptr %args, i64 8
  %v20 = load ptr, ptr %v19
  %v45 = getelementptr i8, ptr %args, i64 16
  %v46 = load ptr, ptr %v45
  %v3 = icmp slt i64 %begin, %end
  br i1 %v3, label %b1, label %b2
b1:
  %i4 = phi i64 [ %begin, %entry ], [ %v61, %b6 ]
  %v21 = getelementptr [512 x i8], ptr %v20, i64 %i4
  %v48 = getelementptr [32 x i8], ptr %v46, i64 %i4
  br label %b5
b5:
  %i7 = phi i64 [ 0, %b1 ], [ %v59, %b13 ]
  %v16 = getelementptr [128 x i8], ptr %v15, i64 %i7
  %v49 = getelementptr [192 x i8], ptr %v48, i64 %i7
  store <4 x float> splat (float 0x0000000000000000), ptr %m8, align 4
  %v9 = getelementptr i8, ptr %m8, i64 16
  store <4 x float> splat (float 0x0000000000000000), ptr %v9, align 4
  %v10 = getelementptr i8, ptr %m8, i64 32
  store <4 x float> splat (float 0x0000000000000000), ptr %v10, align 4
  %v11 = getelementptr i8, ptr %m8, i64 48
  store <4 x float> splat (float 0x0000000000000000), ptr %v11, align 4
  br label %b12
b12:
  %i14 = phi i64 [ 0, %b5 ], [ %v43, %b12 ]
  %v17 = getelementptr [8 x i8], ptr %v16, i64 %i14
  %v22 = getelementptr [32 x i8], ptr %v21, i64 %i14
  %v18 = load float, ptr %v17, align 4
  %v23 = load <4 x float>, ptr %v22, align 4
  %v24 = load <4 x float>, ptr %m8, align 4
  %v25 = insertelement <4 x float> poison, float %v18, i64 0
  %v26 = shufflevector <4 x float> %v25, <4 x float> poison, <4 x i32> zeroinitializer
  %v27 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v26, <4 x float> %v23, <4 x float> %v24)
  store <4 x float> %v27, ptr %m8, align 4
  %v28 = getelementptr i8, ptr %v22, i64 16
  %v29 = load <4 x float>, ptr %v28, align 4
  %v30 = getelementptr i8, ptr %m8, i64 16
  %v31 = load <4 x float>, ptr %v30, align 4
  %v32 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v26, <4 x float> %v29, <4 x float> %v31)
  store <4 x float> %v32, ptr %v30, align 4
  %v33 = getelementptr i8, ptr %v17, i64 4
  %v34 = load float, ptr %v33, align 4
  %v35 = getelementptr i8, ptr %m8, i64 32
  %v36 = load <4 x float>, ptr %v35, align 4
  %v37 = insertelement <4 x float> poison, float %v34, i64 0
  %v38 = shufflevector <4 x float> %v37, <4 x float> poison, <4 x i32> zeroinitializer
  %v39 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v38, <4 x float> %v23, <4 x float> %v36)
  store <4 x float> %v39, ptr %v35, align 4
  %v40 = getelementptr i8, ptr %m8, i64 48
  %v41 = load <4 x float>, ptr %v40, align 4
  %v42 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v38, <4 x float> %v29, <4 x float> %v41)
  store <4 x float> %v42, ptr %v40, align 4
  %v43 = add nuw nsw i64 %i14, 1
  %v44 = icmp ne i64 %v43, 16
  br i1 %v44, label %b12, label %b13
b13:
  %v47 = load <4 x float>, ptr %m8, align 4
  store <4 x float> %v47, ptr %v49, align 4
  %v50 = getelementptr i8, ptr %m8, i64 16
  %v51 = load <4 x float>, ptr %v50, align 4
  %v52 = getelementptr i8, ptr %v49, i64 16
  store <4 x float> %v51, ptr %v52, align 4
  %v53 = getelementptr i8, ptr %m8, i64 32
  %v54 = load <4 x float>, ptr %v53, align 4
  %v55 = getelementptr i8, ptr %v49, i64 96
  store <4 x float> %v54, ptr %v55, align 4
  %v56 = getelementptr i8, ptr %m8, i64 48
  %v57 = load <4 x float>, ptr %v56, align 4
  %v58 = getelementptr i8, ptr %v49, i64 112
  store <4 x float> %v57, ptr %v58, align 4
  %v59 = add nuw nsw i64 %i7, 1
  %v60 = icmp ne i64 %v59, 2
  br i1 %v60, label %b5, label %b6
b6:
  %v61 = add nuw nsw i64 %i4, 1
  %v62 = icmp ne i64 %v61, %end
  br i1 %v62, label %b1, label %b2
b2:
  ret void
}
