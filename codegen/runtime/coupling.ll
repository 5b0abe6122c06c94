; tw_couple_pairs: probabilities of classes from those of each two of them, as Wu, Lin and Weng have it ("Probability
; estimates for multi-class classification by pairwise coupling", 2004, algorithm 2). An iteration is a row.

declare float @llvm.fabs.f32(float)

; Matrices Q [rows, classes, classes]; results [2, rows, classes], of which the second half is memory of its own. Then
; numbers: rows and classes.
%Couple = type { ptr, ptr, i64, i64 }

define void @tw_couple_pairs(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %matrices = load ptr, ptr %args
  %results.at = getelementptr %Couple, ptr %args, i32 0, i32 1
  %results = load ptr, ptr %results.at
  %rows.at = getelementptr %Couple, ptr %args, i32 0, i32 2
  %rows = load i64, ptr %rows.at
  %count.at = getelementptr %Couple, ptr %args, i32 0, i32 3
  %count = load i64, ptr %count.at
  %half = mul i64 %rows, %count
  %memory = getelementptr float, ptr %results, i64 %half
  %square = mul i64 %count, %count
  br label %check
check:
  %row = phi i64 [ %begin, %entry ], [ %row.next, %each ]
  %more = icmp slt i64 %row, %end
  br i1 %more, label %each, label %done
each:
  %first = mul i64 %row, %square
  %q = getelementptr float, ptr %matrices, i64 %first
  %first.class = mul i64 %row, %count
  %p = getelementptr float, ptr %results, i64 %first.class
  %qp = getelementptr float, ptr %memory, i64 %first.class
  call void @couple_row(ptr %q, ptr %p, ptr %qp, i64 %count)
  %row.next = add i64 %row, 1
  br label %check
done:
  ret void
}

; All classes are as likely at first. Then p becomes better until Q p is the same for all, a hundred times at most.
define internal void @couple_row(ptr %q, ptr %p, ptr %qp, i64 %count) nounwind {
entry:
  %count.float = uitofp i64 %count to float
  %even = fdiv float 1.0, %count.float
  %least = fdiv float 0x3F747AE140000000, %count.float ; 0.005
  br label %start
start:
  %s = phi i64 [ 0, %entry ], [ %s.next, %start ]
  %s.at = getelementptr float, ptr %p, i64 %s
  store float %even, ptr %s.at
  %s.next = add i64 %s, 1
  %started = icmp eq i64 %s.next, %count
  br i1 %started, label %round, label %start
round:
  %n = phi i64 [ 0, %start ], [ %n.next, %improved ]
  %goes.on = icmp slt i64 %n, 100
  br i1 %goes.on, label %product, label %done
product:
  %pqp = call float @multiply(ptr %q, ptr %p, ptr %qp, i64 %count)
  %error = call float @largest_error(ptr %qp, float %pqp, i64 %count)
  %is.close = fcmp olt float %error, %least
  br i1 %is.close, label %done, label %improve
improve:
  %i = phi i64 [ 0, %product ], [ %i.next, %improve ]
  %total = phi float [ %pqp, %product ], [ %total.next, %improve ]
  %i.row = mul i64 %i, %count
  %q.row = getelementptr float, ptr %q, i64 %i.row
  %total.next = call float @improve_class(ptr %q.row, ptr %p, ptr %qp, i64 %i, float %total, i64 %count)
  %i.next = add i64 %i, 1
  %all = icmp eq i64 %i.next, %count
  br i1 %all, label %improved, label %improve
improved:
  %n.next = add i64 %n, 1
  br label %round
done:
  ret void
}

; Q p, and p Q p.
define internal float @multiply(ptr %q, ptr %p, ptr %qp, i64 %count) nounwind {
entry:
  br label %each
each:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %total = phi float [ 0.0, %entry ], [ %total.next, %next ]
  %row = mul i64 %i, %count
  %q.row = getelementptr float, ptr %q, i64 %row
  br label %sum
sum:
  %j = phi i64 [ 0, %each ], [ %j.next, %sum ]
  %part = phi float [ 0.0, %each ], [ %part.next, %sum ]
  %q.at = getelementptr float, ptr %q.row, i64 %j
  %q.value = load float, ptr %q.at
  %p.at = getelementptr float, ptr %p, i64 %j
  %p.value = load float, ptr %p.at
  %product = fmul float %q.value, %p.value
  %part.next = fadd float %part, %product
  %j.next = add i64 %j, 1
  %summed = icmp eq i64 %j.next, %count
  br i1 %summed, label %next, label %sum
next:
  %qp.at = getelementptr float, ptr %qp, i64 %i
  store float %part.next, ptr %qp.at
  %own.at = getelementptr float, ptr %p, i64 %i
  %own = load float, ptr %own.at
  %share = fmul float %own, %part.next
  %total.next = fadd float %total, %share
  %i.next = add i64 %i, 1
  %all = icmp eq i64 %i.next, %count
  br i1 %all, label %done, label %each
done:
  ret float %total.next
}

; How far Q p is from p Q p; what is NaN is passed over.
define internal float @largest_error(ptr %qp, float %pqp, i64 %count) nounwind {
entry:
  br label %each
each:
  %i = phi i64 [ 0, %entry ], [ %i.next, %each ]
  %largest = phi float [ 0.0, %entry ], [ %largest.next, %each ]
  %at = getelementptr float, ptr %qp, i64 %i
  %value = load float, ptr %at
  %difference = fsub float %value, %pqp
  %error = call float @llvm.fabs.f32(float %difference)
  %is.larger = fcmp ogt float %error, %largest
  %largest.next = select i1 %is.larger, float %error, float %largest
  %i.next = add i64 %i, 1
  %all = icmp eq i64 %i.next, %count
  br i1 %all, label %done, label %each
done:
  ret float %largest.next
}

; Move the probability of one class to where its error is 0, and divide all by their sum. Returns p Q p.
define internal float @improve_class(ptr %q.row, ptr %p, ptr %qp, i64 %i, float %pqp, i64 %count) nounwind {
entry:
  %own.at = getelementptr float, ptr %q.row, i64 %i
  %own = load float, ptr %own.at
  %qp.at = getelementptr float, ptr %qp, i64 %i
  %qp.value = load float, ptr %qp.at
  %error = fsub float %pqp, %qp.value
  %step = fdiv float %error, %own
  %p.at = getelementptr float, ptr %p, i64 %i
  %p.value = load float, ptr %p.at
  %p.moved = fadd float %p.value, %step
  store float %p.moved, ptr %p.at
  %sum = fadd float 1.0, %step
  %square = fmul float %step, %own
  %twice = fmul float 2.0, %qp.value
  %slope = fadd float %square, %twice
  %gain = fmul float %step, %slope
  %moved = fadd float %pqp, %gain
  %once = fdiv float %moved, %sum
  %result = fdiv float %once, %sum
  br label %each
each:
  %j = phi i64 [ 0, %entry ], [ %j.next, %each ]
  %q.at = getelementptr float, ptr %q.row, i64 %j
  %q.value = load float, ptr %q.at
  %change = fmul float %step, %q.value
  %other.at = getelementptr float, ptr %qp, i64 %j
  %other = load float, ptr %other.at
  %changed = fadd float %other, %change
  %scaled = fdiv float %changed, %sum
  store float %scaled, ptr %other.at
  %share.at = getelementptr float, ptr %p, i64 %j
  %share = load float, ptr %share.at
  %part = fdiv float %share, %sum
  store float %part, ptr %share.at
  %j.next = add i64 %j, 1
  %all = icmp eq i64 %j.next, %count
  br i1 %all, label %done, label %each
done:
  ret float %result
}
