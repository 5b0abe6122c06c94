target triple = "aarch64-unknown-linux-gnu"

; iterations 0 .. 2 in parallel
define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %m8 = alloca [16 x float], align 64
  %v15 = load ptr, ptr %args
  %v21 = getelementptr i8, ptr %args, i64 8
  %v22 = load ptr, ptr %v21
  %v49 = getelementptr i8, ptr %args, i64 16
  %v50 = load ptr, ptr %v49
  %v3 = icmp slt i64 %begin, %end
  br i1 %v3, label %b1, label %b2
b1:
  %i4 = phi i64 [ %begin, %entry ], [ %v67, %b6 ]
  %v23 = getelementptr [512 x i8], ptr %v22, i64 %i4
  %v24 = call ptr @llvm.ptrmask.p0.i64(ptr %v23, i64 -1)
  %v52 = getelementptr [32 x i8], ptr %v50, i64 %i4
  %v53 = call ptr @llvm.ptrmask.p0.i64(ptr %v52, i64 -1)
  br label %b5
b5:
  %i7 = phi i64 [ 0, %b1 ], [ %v65, %b13 ]
  %v16 = getelementptr [128 x i8], ptr %v15, i64 %i7
  %v17 = call ptr @llvm.ptrmask.p0.i64(ptr %v16, i64 -1)
  %v54 = getelementptr [192 x i8], ptr %v53, i64 %i7
  %v55 = call ptr @llvm.ptrmask.p0.i64(ptr %v54, i64 -1)
  store <4 x float> splat (float 0x0000000000000000), ptr %m8, align 4
  %v9 = getelementptr i8, ptr %m8, i64 16
  store <4 x float> splat (float 0x0000000000000000), ptr %v9, align 4
  %v10 = getelementptr i8, ptr %m8, i64 32
  store <4 x float> splat (float 0x0000000000000000), ptr %v10, align 4
  %v11 = getelementptr i8, ptr %m8, i64 48
  store <4 x float> splat (float 0x0000000000000000), ptr %v11, align 4
  br label %b12
b12:
  %i14 = phi i64 [ 0, %b5 ], [ %v47, %b12 ]
  %v18 = getelementptr [8 x i8], ptr %v17, i64 %i14
  %v19 = call ptr @llvm.ptrmask.p0.i64(ptr %v18, i64 -1)
  %v25 = getelementptr [32 x i8], ptr %v24, i64 %i14
  %v26 = call ptr @llvm.ptrmask.p0.i64(ptr %v25, i64 -1)
  %v20 = load float, ptr %v19, align 4
  %v27 = load <4 x float>, ptr %v26, align 4
  %v28 = load <4 x float>, ptr %m8, align 4
  %v29 = insertelement <4 x float> poison, float %v20, i64 0
  %v30 = shufflevector <4 x float> %v29, <4 x float> poison, <4 x i32> zeroinitializer
  %v31 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v30, <4 x float> %v27, <4 x float> %v28)
  store <4 x float> %v31, ptr %m8, align 4
  %v32 = getelementptr i8, ptr %v26, i64 16
  %v33 = load <4 x float>, ptr %v32, align 4
  %v34 = getelementptr i8, ptr %m8, i64 16
  %v35 = load <4 x float>, ptr %v34, align 4
  %v36 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v30, <4 x float> %v33, <4 x float> %v35)
  store <4 x float> %v36, ptr %v34, align 4
  %v37 = getelementptr i8, ptr %v19, i64 4
  %v38 = load float, ptr %v37, align 4
  %v39 = getelementptr i8, ptr %m8, i64 32
  %v40 = load <4 x float>, ptr %v39, align 4
  %v41 = insertelement <4 x float> poison, float %v38, i64 0
  %v42 = shufflevector <4 x float> %v41, <4 x float> poison, <4 x i32> zeroinitializer
  %v43 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v42, <4 x float> %v27, <4 x float> %v40)
  store <4 x float> %v43, ptr %v39, align 4
  %v44 = getelementptr i8, ptr %m8, i64 48
  %v45 = load <4 x float>, ptr %v44, align 4
  %v46 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v42, <4 x float> %v33, <4 x float> %v45)
  store <4 x float> %v46, ptr %v44, align 4
  %v47 = add nuw nsw i64 %i14, 1
  %v48 = icmp ne i64 %v47, 16
  br i1 %v48, label %b12, label %b13
b13:
  %v51 = load <4 x float>, ptr %m8, align 4
  store <4 x float> %v51, ptr %v55, align 4
  %v56 = getelementptr i8, ptr %m8, i64 16
  %v57 = load <4 x float>, ptr %v56, align 4
  %v58 = getelementptr i8, ptr %v55, i64 16
  store <4 x float> %v57, ptr %v58, align 4
  %v59 = getelementptr i8, ptr %m8, i64 32
  %v60 = load <4 x float>, ptr %v59, align 4
  %v61 = getelementptr i8, ptr %v55, i64 96
  store <4 x float> %v60, ptr %v61, align 4
  %v62 = getelementptr i8, ptr %m8, i64 48
  %v63 = load <4 x float>, ptr %v62, align 4
  %v64 = getelementptr i8, ptr %v55, i64 112
  store <4 x float> %v63, ptr %v64, align 4
  %v65 = add nuw nsw i64 %i7, 1
  %v66 = icmp ne i64 %v65, 2
  br i1 %v66, label %b5, label %b6
b6:
  %v67 = add nuw nsw i64 %i4, 1
  %v68 = icmp ne i64 %v67, %end
  br i1 %v68, label %b1, label %b2
b2:
  ret void
}
