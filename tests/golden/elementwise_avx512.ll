target triple = "x86_64-unknown-linux-gnu"

; iterations 0 .. 7 in parallel
define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %v8 = getelementptr i8, ptr %args, i64 16
  %v9 = load ptr, ptr %v8
  %v10 = load ptr, ptr %args
  %v16 = getelementptr i8, ptr %args, i64 8
  %v17 = load ptr, ptr %v16
  %v36 = getelementptr i8, ptr %args, i64 24
  %v37 = load ptr, ptr %v36
  %v3 = icmp slt i64 %begin, %end
  br i1 %v3, label %b1, label %b2
b1:
  %i4 = phi i64 [ %begin, %entry ], [ %v46, %b6 ]
  %v11 = getelementptr [204 x i8], ptr %v10, i64 %i4
  %v12 = call ptr @llvm.ptrmask.p0.i64(ptr %v11, i64 -1)
  %v23 = getelementptr [204 x i8], ptr %v9, i64 %i4
  %v24 = call ptr @llvm.ptrmask.p0.i64(ptr %v23, i64 -1)
  %v43 = getelementptr [3 x i8], ptr %v37, i64 %i4
  %v44 = call ptr @llvm.ptrmask.p0.i64(ptr %v43, i64 -1)
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
  %v30 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v29, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>, <16 x float> zeroinitializer)
  %v31 = getelementptr i8, ptr %v17, i64 192
  %v32 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v31, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>, <16 x float> zeroinitializer)
  %v33 = fmul <16 x float> %v30, %v32
  %v34 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v33, <16 x float> splat (float 0x0000000000000000))
  %v35 = getelementptr i8, ptr %v24, i64 192
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v34, ptr align 4 %v35, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>)
  %v38 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v29, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>, <16 x float> zeroinitializer)
  %v39 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v31, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>, <16 x float> zeroinitializer)
  %v40 = fmul <16 x float> %v38, %v39
  %v41 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v40, <16 x float> splat (float 0x0000000000000000))
  %v42 = fcmp olt <16 x float> %v38, %v41
  %v45 = zext <16 x i1> %v42 to <16 x i8>
  call void @llvm.masked.store.v16i8.p0(<16 x i8> %v45, ptr align 1 %v44, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>)
  %v46 = add nuw nsw i64 %i4, 1
  %v47 = icmp ne i64 %v46, %end
  br i1 %v47, label %b1, label %b2
b2:
  ret void
}
