target triple = "x86_64-unknown-linux-gnu"

; iterations 0 .. 7 in parallel
define void @kernel_p0(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %v8 = getelementptr i8, ptr %args, i64 16
  %v9 = load ptr, ptr %v8
  %v10 = load ptr, ptr %args
  %v14 = getelementptr i8, ptr %args, i64 8
  %v15 = load ptr, ptr %v14
  %v31 = getelementptr i8, ptr %args, i64 24
  %v32 = load ptr, ptr %v31
  %v3 = icmp slt i64 %begin, %end
  br i1 %v3, label %b1, label %b2
b1:
  %i4 = phi i64 [ %begin, %entry ], [ %v40, %b6 ]
  %v11 = getelementptr [204 x i8], ptr %v10, i64 %i4
  %v20 = getelementptr [204 x i8], ptr %v9, i64 %i4
  %v38 = getelementptr [3 x i8], ptr %v32, i64 %i4
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
  %v25 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v24, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>, <16 x float> zeroinitializer)
  %v26 = getelementptr i8, ptr %v15, i64 192
  %v27 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v26, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>, <16 x float> zeroinitializer)
  %v28 = fmul <16 x float> %v25, %v27
  %v29 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v28, <16 x float> splat (float 0x0000000000000000))
  %v30 = getelementptr i8, ptr %v20, i64 192
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v29, ptr align 4 %v30, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>)
  %v33 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v24, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>, <16 x float> zeroinitializer)
  %v34 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v26, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>, <16 x float> zeroinitializer)
  %v35 = fmul <16 x float> %v33, %v34
  %v36 = call nsz <16 x float> @llvm.maximum.v16f32(<16 x float> %v35, <16 x float> splat (float 0x0000000000000000))
  %v37 = fcmp olt <16 x float> %v33, %v36
  %v39 = zext <16 x i1> %v37 to <16 x i8>
  call void @llvm.masked.store.v16i8.p0(<16 x i8> %v39, ptr align 1 %v38, <16 x i1> <i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>)
  %v40 = add nuw nsw i64 %i4, 1
  %v41 = icmp ne i64 %v40, %end
  br i1 %v41, label %b1, label %b2
b2:
  ret void
}
