; Kernels whose number of results only a run tells. They are called as kernels are. Exported, as their addresses stand in
; steps:
;   tw_find_true        the places of bytes that are true; one iteration
;   tw_find_largest     the places of the largest elements of rows, or of the smallest; an iteration is a row
;   tw_suppress_boxes   boxes that overlap none with a higher score; an iteration is a row, of one class of one image

declare float @llvm.minnum.f32(float, float)
declare float @llvm.maxnum.f32(float, float)

; Bytes, places, the count, and the number of bytes. There is a place for each byte; those behind the count become 0.
%Find = type { ptr, ptr, ptr, i64 }

; Rows, how many elements of each are wanted, and their places: a heap while they are looked for. Then numbers: elements
; of a row, most places of a row, and whether the largest are wanted.
%Largest = type { ptr, ptr, ptr, i64, i64, i64 }

; Corners of boxes [images, boxes, 4], each lower than the opposite one; scores [images, classes, boxes]; the overlap that
; is allowed; the score that must be exceeded; how many boxes of a class are wanted. Results for each row: places of boxes, and bytes that tell which of the
; places are taken. A heap for each row. Then numbers: boxes, classes, most places of a row.
%Suppress = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, i64, i64, i64 }

define void @tw_find_true(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %bytes = load ptr, ptr %args
  %places.at = getelementptr %Find, ptr %args, i32 0, i32 1
  %places = load ptr, ptr %places.at
  %count.at = getelementptr %Find, ptr %args, i32 0, i32 2
  %count.cell = load ptr, ptr %count.at
  %size.at = getelementptr %Find, ptr %args, i32 0, i32 3
  %size = load i64, ptr %size.at
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %look ]
  %found = phi i64 [ 0, %entry ], [ %found.next, %look ]
  %more = icmp slt i64 %i, %size
  br i1 %more, label %look, label %done
look: ; the next one writes over a place that was not found
  %place.at = getelementptr i64, ptr %places, i64 %found
  store i64 %i, ptr %place.at
  %byte.at = getelementptr i8, ptr %bytes, i64 %i
  %byte = load i8, ptr %byte.at
  %is.true = icmp ne i8 %byte, 0
  %one = zext i1 %is.true to i64
  %found.next = add i64 %found, %one
  %i.next = add i64 %i, 1
  br label %check
done:
  store i64 %found, ptr %count.cell
  %rest = getelementptr i64, ptr %places, i64 %found
  %left = sub i64 %size, %found
  %left.bytes = mul i64 %left, 8
  call void @llvm.memset.p0.i64(ptr %rest, i8 0, i64 %left.bytes, i1 false)
  ret void
}

define void @tw_find_largest(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %all.rows = load ptr, ptr %args
  %wanted.at = getelementptr %Largest, ptr %args, i32 0, i32 1
  %wanted.cell = load ptr, ptr %wanted.at
  %wanted = load i64, ptr %wanted.cell
  %places.at = getelementptr %Largest, ptr %args, i32 0, i32 2
  %all.places = load ptr, ptr %places.at
  %count.at = getelementptr %Largest, ptr %args, i32 0, i32 3
  %count = load i64, ptr %count.at
  %most.at = getelementptr %Largest, ptr %args, i32 0, i32 4
  %most = load i64, ptr %most.at
  %way.at = getelementptr %Largest, ptr %args, i32 0, i32 5
  %way = load i64, ptr %way.at
  %is.largest = icmp ne i64 %way, 0
  %some = call i64 @llvm.smax.i64(i64 %wanted, i64 0)
  %limit = call i64 @llvm.smin.i64(i64 %some, i64 %most)
  br label %check
check:
  %row = phi i64 [ %begin, %entry ], [ %row.next, %each ]
  %more = icmp slt i64 %row, %end
  br i1 %more, label %each, label %done
each:
  %first = mul i64 %row, %count
  %values = getelementptr float, ptr %all.rows, i64 %first
  %first.place = mul i64 %row, %most
  %places = getelementptr i64, ptr %all.places, i64 %first.place
  call void @find_largest(ptr %values, ptr %places, i64 %count, i64 %limit, i1 %is.largest)
  %rest = getelementptr i64, ptr %places, i64 %limit
  %left = sub i64 %most, %limit
  %left.bytes = mul i64 %left, 8
  call void @llvm.memset.p0.i64(ptr %rest, i8 0, i64 %left.bytes, i1 false)
  %row.next = add i64 %row, 1
  br label %check
done:
  ret void
}

; The places of the first elements are a heap whose root is last in order. Each later element that is ahead of it takes
; its place. In the end the roots, one after the other, go behind what is left of the heap.
define internal void @find_largest(ptr %values, ptr %heap, i64 %count, i64 %limit, i1 %is.largest) nounwind {
entry:
  %any = icmp sgt i64 %limit, 0
  br i1 %any, label %fill, label %done
fill:
  %place = phi i64 [ 0, %entry ], [ %place.next, %fill ]
  %cell = getelementptr i64, ptr %heap, i64 %place
  store i64 %place, ptr %cell
  %place.next = add i64 %place, 1
  %filled = icmp eq i64 %place.next, %limit
  br i1 %filled, label %build, label %fill
build:
  %half = sdiv i64 %limit, 2
  br label %parents
parents:
  %parent.behind = phi i64 [ %half, %build ], [ %parent, %settle ]
  %has.parent = icmp sgt i64 %parent.behind, 0
  br i1 %has.parent, label %settle, label %look
settle:
  %parent = sub i64 %parent.behind, 1
  call void @sink(ptr %heap, ptr %values, i64 %limit, i64 %parent, i1 %is.largest, i1 false)
  br label %parents
look:
  %i = phi i64 [ %limit, %parents ], [ %behind, %eight ], [ %i.next, %single ], [ %i.next, %exchange ]
  %root = load i64, ptr %heap
  %root.at = getelementptr float, ptr %values, i64 %root
  %root.value = load float, ptr %root.at
  %behind = add i64 %i, 8
  %has.eight = icmp sle i64 %behind, %count
  br i1 %has.eight, label %eight, label %last.ones
eight: ; most are behind the root: eight of them at a time are passed over
  %one.root = insertelement <8 x float> poison, float %root.value, i64 0
  %roots = shufflevector <8 x float> %one.root, <8 x float> poison, <8 x i32> zeroinitializer
  %eight.at = getelementptr float, ptr %values, i64 %i
  %eight.values = load <8 x float>, ptr %eight.at, align 4
  %are.more = fcmp ugt <8 x float> %eight.values, %roots
  %are.less = fcmp ult <8 x float> %eight.values, %roots
  %are.ahead = select i1 %is.largest, <8 x i1> %are.more, <8 x i1> %are.less
  %ahead.bits = bitcast <8 x i1> %are.ahead to i8
  %none = icmp eq i8 %ahead.bits, 0
  br i1 %none, label %look, label %single
last.ones:
  %more = icmp slt i64 %i, %count
  br i1 %more, label %single, label %order
single:
  %i.next = add i64 %i, 1
  %is.ahead = call i1 @is_ahead(ptr %values, i64 %i, i64 %root, i1 %is.largest)
  br i1 %is.ahead, label %exchange, label %look
exchange:
  store i64 %i, ptr %heap
  call void @sink(ptr %heap, ptr %values, i64 %limit, i64 0, i1 %is.largest, i1 false)
  br label %look
order:
  %left = phi i64 [ %limit, %last.ones ], [ %left.next, %take ]
  %some = icmp sgt i64 %left, 1
  br i1 %some, label %take, label %done
take:
  %left.next = sub i64 %left, 1
  %end.at = getelementptr i64, ptr %heap, i64 %left.next
  %end = load i64, ptr %end.at
  %last = load i64, ptr %heap
  store i64 %last, ptr %end.at
  store i64 %end, ptr %heap
  call void @sink(ptr %heap, ptr %values, i64 %left.next, i64 0, i1 %is.largest, i1 false)
  br label %order
done:
  ret void
}

; Let an element of a heap sink below all that are nearer to the root: what comes first in order, or what comes last.
define internal void @sink(ptr %heap, ptr %values, i64 %count, i64 %from, i1 %is.largest, i1 %first.at.root) nounwind {
entry:
  %from.at = getelementptr i64, ptr %heap, i64 %from
  %item = load i64, ptr %from.at
  br label %check
check:
  %at = phi i64 [ %from, %entry ], [ %child, %rise ]
  %twice = mul i64 %at, 2
  %left = add i64 %twice, 1
  %right = add i64 %twice, 2
  %has.left = icmp slt i64 %left, %count
  br i1 %has.left, label %look, label %done
look:
  %left.at = getelementptr i64, ptr %heap, i64 %left
  %left.item = load i64, ptr %left.at
  %has.right = icmp slt i64 %right, %count
  br i1 %has.right, label %both, label %chosen
both:
  %right.at = getelementptr i64, ptr %heap, i64 %right
  %right.item = load i64, ptr %right.at
  %right.is.ahead = call i1 @is_ahead(ptr %values, i64 %right.item, i64 %left.item, i1 %is.largest)
  %is.right = icmp eq i1 %right.is.ahead, %first.at.root
  %nearer = select i1 %is.right, i64 %right, i64 %left
  %nearer.item = select i1 %is.right, i64 %right.item, i64 %left.item
  br label %chosen
chosen:
  %child = phi i64 [ %left, %look ], [ %nearer, %both ]
  %child.item = phi i64 [ %left.item, %look ], [ %nearer.item, %both ]
  %child.is.ahead = call i1 @is_ahead(ptr %values, i64 %child.item, i64 %item, i1 %is.largest)
  %sinks = icmp eq i1 %child.is.ahead, %first.at.root
  br i1 %sinks, label %rise, label %done
rise:
  %hole.at = getelementptr i64, ptr %heap, i64 %at
  store i64 %child.item, ptr %hole.at
  br label %check
done:
  %end.at = getelementptr i64, ptr %heap, i64 %at
  store i64 %item, ptr %end.at
  ret void
}

; Whether an element of a row comes before another: NaN is the largest, and of equal ones the first comes first.
define internal i1 @is_ahead(ptr %values, i64 %one, i64 %other, i1 %is.largest) alwaysinline nounwind {
  %one.at = getelementptr float, ptr %values, i64 %one
  %one.value = load float, ptr %one.at
  %other.at = getelementptr float, ptr %values, i64 %other
  %other.value = load float, ptr %other.at
  %high = select i1 %is.largest, float %one.value, float %other.value
  %low = select i1 %is.largest, float %other.value, float %one.value
  %is.more = fcmp ogt float %high, %low
  %high.is.nan = fcmp uno float %high, %high
  %low.is.number = fcmp ord float %low, %low
  %is.nan = and i1 %high.is.nan, %low.is.number
  %is.apart = or i1 %is.more, %is.nan
  %is.equal = fcmp oeq float %one.value, %other.value
  %low.is.nan = xor i1 %low.is.number, true
  %are.nan = and i1 %high.is.nan, %low.is.nan
  %is.same = or i1 %is.equal, %are.nan
  %is.first = icmp slt i64 %one, %other
  %is.tie = and i1 %is.same, %is.first
  %is.ahead = or i1 %is.apart, %is.tie
  ret i1 %is.ahead
}

define void @tw_suppress_boxes(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  br label %check
check:
  %row = phi i64 [ %begin, %entry ], [ %row.next, %each ]
  %more = icmp slt i64 %row, %end
  br i1 %more, label %each, label %done
each:
  call void @suppress_row(ptr %args, i64 %row)
  %row.next = add i64 %row, 1
  br label %check
done:
  ret void
}

; The row's boxes in order of their scores, each kept unless it overlaps one that was kept before.
define internal void @suppress_row(ptr %args, i64 %row) nounwind {
entry:
  %count.at = getelementptr %Suppress, ptr %args, i32 0, i32 8
  %count = load i64, ptr %count.at
  %classes.at = getelementptr %Suppress, ptr %args, i32 0, i32 9
  %classes = load i64, ptr %classes.at
  %most.at = getelementptr %Suppress, ptr %args, i32 0, i32 10
  %most = load i64, ptr %most.at
  %wanted.at = getelementptr %Suppress, ptr %args, i32 0, i32 4
  %wanted.cell = load ptr, ptr %wanted.at
  %wanted = load i64, ptr %wanted.cell
  %limit = call i64 @llvm.smin.i64(i64 %wanted, i64 %most)
  %all.boxes = load ptr, ptr %args
  %image = sdiv i64 %row, %classes
  %image.boxes = mul i64 %image, %count
  %image.floats = mul i64 %image.boxes, 4
  %boxes = getelementptr float, ptr %all.boxes, i64 %image.floats
  %first = mul i64 %row, %count
  %scores.at = getelementptr %Suppress, ptr %args, i32 0, i32 1
  %all.scores = load ptr, ptr %scores.at
  %scores = getelementptr float, ptr %all.scores, i64 %first
  %overlap.at = getelementptr %Suppress, ptr %args, i32 0, i32 2
  %overlap.cell = load ptr, ptr %overlap.at
  %overlap = load float, ptr %overlap.cell
  %least.at = getelementptr %Suppress, ptr %args, i32 0, i32 3
  %least.cell = load ptr, ptr %least.at
  %least = load float, ptr %least.cell
  %first.place = mul i64 %row, %most
  %places.at = getelementptr %Suppress, ptr %args, i32 0, i32 5
  %all.places = load ptr, ptr %places.at
  %places = getelementptr i64, ptr %all.places, i64 %first.place
  %taken.at = getelementptr %Suppress, ptr %args, i32 0, i32 6
  %all.taken = load ptr, ptr %taken.at
  %taken = getelementptr i8, ptr %all.taken, i64 %first.place
  %heaps.at = getelementptr %Suppress, ptr %args, i32 0, i32 7
  %heaps = load ptr, ptr %heaps.at
  %heap = getelementptr i64, ptr %heaps, i64 %first
  %places.bytes = mul i64 %most, 8
  call void @llvm.memset.p0.i64(ptr %places, i8 0, i64 %places.bytes, i1 false)
  call void @llvm.memset.p0.i64(ptr %taken, i8 0, i64 %most, i1 false)
  %one.least = insertelement <8 x float> poison, float %least, i64 0
  %leasts = shufflevector <8 x float> %one.least, <8 x float> poison, <8 x i32> zeroinitializer
  br label %check
check: ; most scores are low: eight of them at a time are passed over
  %i = phi i64 [ 0, %entry ], [ %i.next, %look ], [ %behind, %eight ]
  %found = phi i64 [ 0, %entry ], [ %found.next, %look ], [ %found, %eight ]
  %behind = add i64 %i, 8
  %has.eight = icmp sle i64 %behind, %count
  br i1 %has.eight, label %eight, label %last.ones
eight:
  %eight.at = getelementptr float, ptr %scores, i64 %i
  %eight.scores = load <8 x float>, ptr %eight.at, align 4
  %are.sure = fcmp ogt <8 x float> %eight.scores, %leasts
  %sure.bits = bitcast <8 x i1> %are.sure to i8
  %none = icmp eq i8 %sure.bits, 0
  br i1 %none, label %check, label %look
last.ones:
  %more = icmp slt i64 %i, %count
  br i1 %more, label %look, label %order
look:
  %score.at = getelementptr float, ptr %scores, i64 %i
  %score = load float, ptr %score.at
  %is.sure = fcmp ogt float %score, %least
  %one = zext i1 %is.sure to i64
  %heap.at = getelementptr i64, ptr %heap, i64 %found
  store i64 %i, ptr %heap.at
  %found.next = add i64 %found, %one
  %i.next = add i64 %i, 1
  br label %check
order:
  %half = sdiv i64 %found, 2
  br label %parents
parents:
  %parent.behind = phi i64 [ %half, %order ], [ %parent, %sink ]
  %has.parent = icmp sgt i64 %parent.behind, 0
  br i1 %has.parent, label %sink, label %next
sink:
  %parent = sub i64 %parent.behind, 1
  call void @sink(ptr %heap, ptr %scores, i64 %found, i64 %parent, i1 true, i1 true)
  br label %parents
next:
  %left = phi i64 [ %found, %parents ], [ %left.next, %compared ]
  %kept = phi i64 [ 0, %parents ], [ %kept.next, %compared ]
  %some = icmp sgt i64 %left, 0
  %room = icmp slt i64 %kept, %limit
  %goes.on = and i1 %some, %room
  br i1 %goes.on, label %take, label %done
take:
  %best = load i64, ptr %heap
  %left.next = sub i64 %left, 1
  %last.at = getelementptr i64, ptr %heap, i64 %left.next
  %last = load i64, ptr %last.at
  store i64 %last, ptr %heap
  call void @sink(ptr %heap, ptr %scores, i64 %left.next, i64 0, i1 true, i1 true)
  br label %compare
compare:
  %k = phi i64 [ 0, %take ], [ %k.next, %against ]
  %others = icmp slt i64 %k, %kept
  br i1 %others, label %against, label %keep
against:
  %other.at = getelementptr i64, ptr %places, i64 %k
  %other = load i64, ptr %other.at
  %k.next = add i64 %k, 1
  %is.hidden = call i1 @overlaps(ptr %boxes, i64 %best, i64 %other, float %overlap)
  br i1 %is.hidden, label %compared, label %compare
keep:
  %kept.at = getelementptr i64, ptr %places, i64 %kept
  store i64 %best, ptr %kept.at
  %flag.at = getelementptr i8, ptr %taken, i64 %kept
  store i8 1, ptr %flag.at
  br label %compared
compared:
  %added = phi i64 [ 0, %against ], [ 1, %keep ]
  %kept.next = add i64 %kept, %added
  br label %next
done:
  ret void
}

; Whether what two boxes share is a larger part of what they cover together than is allowed. An empty box hides nothing.
define internal i1 @overlaps(ptr %boxes, i64 %one, i64 %other, float %allowed) alwaysinline nounwind {
entry:
  %one.box = getelementptr [4 x float], ptr %boxes, i64 %one
  %one.y.at = getelementptr float, ptr %one.box, i64 0
  %one.y = load float, ptr %one.y.at
  %one.x.at = getelementptr float, ptr %one.box, i64 1
  %one.x = load float, ptr %one.x.at
  %one.bottom.at = getelementptr float, ptr %one.box, i64 2
  %one.bottom = load float, ptr %one.bottom.at
  %one.right.at = getelementptr float, ptr %one.box, i64 3
  %one.right = load float, ptr %one.right.at
  %other.box = getelementptr [4 x float], ptr %boxes, i64 %other
  %other.y.at = getelementptr float, ptr %other.box, i64 0
  %other.y = load float, ptr %other.y.at
  %other.x.at = getelementptr float, ptr %other.box, i64 1
  %other.x = load float, ptr %other.x.at
  %other.bottom.at = getelementptr float, ptr %other.box, i64 2
  %other.bottom = load float, ptr %other.bottom.at
  %other.right.at = getelementptr float, ptr %other.box, i64 3
  %other.right = load float, ptr %other.right.at
  %y = call float @llvm.maxnum.f32(float %one.y, float %other.y)
  %x = call float @llvm.maxnum.f32(float %one.x, float %other.x)
  %bottom = call float @llvm.minnum.f32(float %one.bottom, float %other.bottom)
  %right = call float @llvm.minnum.f32(float %one.right, float %other.right)
  %high = fcmp ogt float %bottom, %y
  %wide = fcmp ogt float %right, %x
  %met = and i1 %high, %wide
  br i1 %met, label %measure, label %apart
apart:
  ret i1 false
measure:
  %height = fsub float %bottom, %y
  %width = fsub float %right, %x
  %shared = fmul float %width, %height
  %one.height = fsub float %one.bottom, %one.y
  %one.width = fsub float %one.right, %one.x
  %one.area = fmul float %one.width, %one.height
  %other.height = fsub float %other.bottom, %other.y
  %other.width = fsub float %other.right, %other.x
  %other.area = fmul float %other.width, %other.height
  %sum = fadd float %one.area, %other.area
  %covered = fsub float %sum, %shared
  %has.shared = fcmp ogt float %shared, 0.0
  %has.one = fcmp ogt float %one.area, 0.0
  %has.other = fcmp ogt float %other.area, 0.0
  %has.covered = fcmp ogt float %covered, 0.0
  %part = fdiv float %shared, %covered
  %beyond = fcmp ogt float %part, %allowed
  %both = and i1 %has.one, %has.other
  %sound = and i1 %both, %has.covered
  %counted = and i1 %has.shared, %sound
  %overlaps = and i1 %counted, %beyond
  ret i1 %overlaps
}
