; tw_find_unique: the different ones among items of some elements each, in ascending order or in that of the first of
; each; one iteration. Exported, as its address stands in steps.

; Elements [items, elements of each], doubles or int64; how many items there are. Results: the place of the first of each
; that is different; how many these are; for each item which of them it is; how often each occurs. What lies behind is 0.
; Memory: a key for each element, a place for each item. Then numbers: most items, elements of each, whether elements are
; doubles, and whether the order is ascending.
%Unique = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, i64, i64, i64, i64 }

define void @tw_find_unique(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %elements = load ptr, ptr %args
  %size.at = getelementptr %Unique, ptr %args, i32 0, i32 1
  %size.cell = load ptr, ptr %size.at
  %size = load i64, ptr %size.cell
  %firsts.at = getelementptr %Unique, ptr %args, i32 0, i32 2
  %firsts = load ptr, ptr %firsts.at
  %found.at = getelementptr %Unique, ptr %args, i32 0, i32 3
  %found.cell = load ptr, ptr %found.at
  %ranks.at = getelementptr %Unique, ptr %args, i32 0, i32 4
  %ranks = load ptr, ptr %ranks.at
  %counts.at = getelementptr %Unique, ptr %args, i32 0, i32 5
  %counts = load ptr, ptr %counts.at
  %keys.at = getelementptr %Unique, ptr %args, i32 0, i32 6
  %keys = load ptr, ptr %keys.at
  %memory.at = getelementptr %Unique, ptr %args, i32 0, i32 7
  %memory = load ptr, ptr %memory.at
  %most.at = getelementptr %Unique, ptr %args, i32 0, i32 8
  %most = load i64, ptr %most.at
  %each.at = getelementptr %Unique, ptr %args, i32 0, i32 9
  %each = load i64, ptr %each.at
  %kind.at = getelementptr %Unique, ptr %args, i32 0, i32 10
  %kind = load i64, ptr %kind.at
  %is.double = icmp ne i64 %kind, 0
  %way.at = getelementptr %Unique, ptr %args, i32 0, i32 11
  %way = load i64, ptr %way.at
  %is.ascending = icmp ne i64 %way, 0
  %some = call i64 @llvm.smax.i64(i64 %size, i64 0)
  %items = call i64 @llvm.smin.i64(i64 %some, i64 %most)
  %key.count = mul i64 %items, %each
  call void @make_keys(ptr %elements, ptr %keys, i64 %key.count, i1 %is.double)
  %sorted = call ptr @sort_places(ptr %keys, i64 %each, ptr %firsts, ptr %memory, i64 %items)
  %bytes = mul i64 %most, 8
  call void @llvm.memset.p0.i64(ptr %counts, i8 0, i64 %bytes, i1 false)
  %found = call i64 @rank_items(ptr %keys, i64 %each, ptr %sorted, ptr %firsts, ptr %ranks, ptr %counts, i64 %items)
  br i1 %is.ascending, label %done, label %renumber
renumber:
  call void @llvm.memset.p0.i64(ptr %counts, i8 0, i64 %bytes, i1 false)
  call void @number_by_first(ptr %memory, ptr %firsts, ptr %ranks, ptr %counts, i64 %items)
  br label %done
done:
  store i64 %found, ptr %found.cell
  %rest = getelementptr i64, ptr %firsts, i64 %found
  %left = sub i64 %most, %found
  %left.bytes = mul i64 %left, 8
  call void @llvm.memset.p0.i64(ptr %rest, i8 0, i64 %left.bytes, i1 false)
  %behind = getelementptr i64, ptr %ranks, i64 %items
  %others = sub i64 %most, %items
  %other.bytes = mul i64 %others, 8
  call void @llvm.memset.p0.i64(ptr %behind, i8 0, i64 %other.bytes, i1 false)
  ret void
}

; Integers in the order of the elements: zeros of both signs are equal, and NaN is one number, above all others.
define internal void @make_keys(ptr %elements, ptr %keys, i64 %count, i1 %is.double) nounwind {
entry:
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %store ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %look, label %done
look:
  %at = getelementptr i64, ptr %elements, i64 %i
  %word = load i64, ptr %at
  br i1 %is.double, label %double, label %store
double:
  %value = bitcast i64 %word to double
  %unsigned.zero = fadd double %value, 0.0
  %bits = bitcast double %unsigned.zero to i64
  %sign = ashr i64 %bits, 63
  %flips = lshr i64 %sign, 1
  %ordered = xor i64 %bits, %flips
  %is.nan = fcmp uno double %value, %value
  %number = select i1 %is.nan, i64 9223372036854775807, i64 %ordered
  br label %store
store:
  %key = phi i64 [ %word, %look ], [ %number, %double ]
  %key.at = getelementptr i64, ptr %keys, i64 %i
  store i64 %key, ptr %key.at
  %i.next = add i64 %i, 1
  br label %check
done:
  ret void
}

; Whether an item comes before another (-1), is the same (0) or comes behind (1): by the first elements that differ.
define internal i64 @compare_items(ptr %keys, i64 %each, i64 %one, i64 %other) alwaysinline nounwind {
entry:
  %one.first = mul i64 %one, %each
  %one.keys = getelementptr i64, ptr %keys, i64 %one.first
  %other.first = mul i64 %other, %each
  %other.keys = getelementptr i64, ptr %keys, i64 %other.first
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %look ]
  %more = icmp slt i64 %i, %each
  br i1 %more, label %look, label %same
look:
  %one.at = getelementptr i64, ptr %one.keys, i64 %i
  %one.key = load i64, ptr %one.at
  %other.at = getelementptr i64, ptr %other.keys, i64 %i
  %other.key = load i64, ptr %other.at
  %i.next = add i64 %i, 1
  %is.equal = icmp eq i64 %one.key, %other.key
  br i1 %is.equal, label %check, label %apart
apart:
  %is.less = icmp slt i64 %one.key, %other.key
  %order = select i1 %is.less, i64 -1, i64 1
  ret i64 %order
same:
  ret i64 0
}

; The places of items in ascending order, equal ones as they are: runs of twice the length each time, from one memory to
; the other. Returns the one that has them in the end.
define internal ptr @sort_places(ptr %keys, i64 %each, ptr %one, ptr %other, i64 %items) nounwind {
entry:
  br label %fill
fill:
  %i = phi i64 [ 0, %entry ], [ %i.next, %put ]
  %unfilled = icmp slt i64 %i, %items
  br i1 %unfilled, label %put, label %pass
put:
  %cell = getelementptr i64, ptr %one, i64 %i
  store i64 %i, ptr %cell
  %i.next = add i64 %i, 1
  br label %fill
pass:
  %from = phi ptr [ %one, %fill ], [ %to, %passed ]
  %to = phi ptr [ %other, %fill ], [ %from, %passed ]
  %length = phi i64 [ 1, %fill ], [ %twice, %passed ]
  %unsorted = icmp slt i64 %length, %items
  br i1 %unsorted, label %pairs, label %done
pairs:
  %twice = mul i64 %length, 2
  br label %pair
pair:
  %low = phi i64 [ 0, %pairs ], [ %low.next, %merge ]
  %more = icmp slt i64 %low, %items
  br i1 %more, label %merge, label %passed
merge:
  %middle.full = add i64 %low, %length
  %middle = call i64 @llvm.smin.i64(i64 %middle.full, i64 %items)
  %low.next = add i64 %low, %twice
  %high = call i64 @llvm.smin.i64(i64 %low.next, i64 %items)
  call void @merge_runs(ptr %keys, i64 %each, ptr %from, ptr %to, i64 %low, i64 %middle, i64 %high)
  br label %pair
passed:
  br label %pass
done:
  ret ptr %from
}

; Two sorted runs, low .. middle - 1 and middle .. high - 1, as one.
define internal void @merge_runs(ptr %keys, i64 %each, ptr %from, ptr %to, i64 %low, i64 %middle, i64 %high) nounwind {
entry:
  br label %check
check:
  %at = phi i64 [ %low, %entry ], [ %at.next, %take ]
  %left = phi i64 [ %low, %entry ], [ %left.next, %take ]
  %right = phi i64 [ %middle, %entry ], [ %right.next, %take ]
  %more = icmp slt i64 %at, %high
  br i1 %more, label %look, label %done
look:
  %left.at = getelementptr i64, ptr %from, i64 %left
  %right.at = getelementptr i64, ptr %from, i64 %right
  %has.left = icmp slt i64 %left, %middle
  br i1 %has.left, label %right.too, label %take
right.too:
  %has.right = icmp slt i64 %right, %high
  br i1 %has.right, label %both, label %take
both:
  %left.item = load i64, ptr %left.at
  %right.item = load i64, ptr %right.at
  %order = call i64 @compare_items(ptr %keys, i64 %each, i64 %left.item, i64 %right.item)
  %is.behind = icmp sgt i64 %order, 0
  br label %take
take:
  %is.right = phi i1 [ true, %look ], [ false, %right.too ], [ %is.behind, %both ]
  %from.at = select i1 %is.right, ptr %right.at, ptr %left.at
  %item = load i64, ptr %from.at
  %to.at = getelementptr i64, ptr %to, i64 %at
  store i64 %item, ptr %to.at
  %from.right = zext i1 %is.right to i64
  %from.left = sub i64 1, %from.right
  %left.next = add i64 %left, %from.left
  %right.next = add i64 %right, %from.right
  %at.next = add i64 %at, 1
  br label %check
done:
  ret void
}

; Number the runs of equal items; returns how many there are. `firsts` may be the memory of `sorted`: what is written to
; lies at or before what was read.
define internal i64 @rank_items(
    ptr %keys, i64 %each, ptr %sorted, ptr %firsts, ptr %ranks, ptr %counts, i64 %items
) nounwind {
entry:
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %count ]
  %found = phi i64 [ 0, %entry ], [ %found.next, %count ]
  %first = phi i64 [ 0, %entry ], [ %first.next, %count ]
  %more = icmp slt i64 %i, %items
  br i1 %more, label %look, label %done
look:
  %item.at = getelementptr i64, ptr %sorted, i64 %i
  %item = load i64, ptr %item.at
  %is.start = icmp eq i64 %i, 0
  br i1 %is.start, label %new, label %beside
beside:
  %order = call i64 @compare_items(ptr %keys, i64 %each, i64 %first, i64 %item)
  %is.same = icmp eq i64 %order, 0
  br i1 %is.same, label %count, label %new
new:
  %first.at = getelementptr i64, ptr %firsts, i64 %found
  store i64 %item, ptr %first.at
  %one.more = add i64 %found, 1
  br label %count
count:
  %found.next = phi i64 [ %found, %beside ], [ %one.more, %new ]
  %first.next = phi i64 [ %first, %beside ], [ %item, %new ]
  %rank = sub i64 %found.next, 1
  %rank.at = getelementptr i64, ptr %ranks, i64 %item
  store i64 %rank, ptr %rank.at
  %count.at = getelementptr i64, ptr %counts, i64 %rank
  %old.count = load i64, ptr %count.at
  %new.count = add i64 %old.count, 1
  store i64 %new.count, ptr %count.at
  %i.next = add i64 %i, 1
  br label %check
done:
  ret i64 %found
}

; Other numbers for ranks, in the order of their first items.
define internal void @number_by_first(ptr %numbers, ptr %firsts, ptr %ranks, ptr %counts, i64 %items) nounwind {
entry:
  %bytes = mul i64 %items, 8
  call void @llvm.memset.p0.i64(ptr %numbers, i8 -1, i64 %bytes, i1 false)
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %count ]
  %found = phi i64 [ 0, %entry ], [ %found.next, %count ]
  %more = icmp slt i64 %i, %items
  br i1 %more, label %look, label %done
look:
  %rank.at = getelementptr i64, ptr %ranks, i64 %i
  %rank = load i64, ptr %rank.at
  %number.at = getelementptr i64, ptr %numbers, i64 %rank
  %known = load i64, ptr %number.at
  %is.new = icmp slt i64 %known, 0
  br i1 %is.new, label %new, label %count
new:
  store i64 %found, ptr %number.at
  %first.at = getelementptr i64, ptr %firsts, i64 %found
  store i64 %i, ptr %first.at
  %one.more = add i64 %found, 1
  br label %count
count:
  %number = phi i64 [ %known, %look ], [ %found, %new ]
  %found.next = phi i64 [ %found, %look ], [ %one.more, %new ]
  store i64 %number, ptr %rank.at
  %count.at = getelementptr i64, ptr %counts, i64 %number
  %old.count = load i64, ptr %count.at
  %new.count = add i64 %old.count, 1
  store i64 %new.count, ptr %count.at
  %i.next = add i64 %i, 1
  br label %check
done:
  ret void
}
