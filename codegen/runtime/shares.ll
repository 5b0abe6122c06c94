; How the threads of the pool in pool.ll share a step.
;
; Shares. The calling thread goes through the steps. One of several iterations it divides evenly and in order among
; the threads, a share each, and signals. A thread takes a quarter of what is left of its own share at a time, then of
; shares behind its own, as their owners may have no processor just now. The step is over when all iterations are done,
; whoever did them; no thread is waited for that has taken none. A late thread does no harm: the claims of a share bear
; the number of their step, and what a thread has taken ends only with its word. So all that belongs to the step is read
; behind the exchange that took.
;
; Absence. A thread that lost its processor amid iterations holds everybody up, until the system gives it back, as a rule
; for milliseconds. If that takes longer than twice what the caller itself worked and 0.2 ms, the thread gets no shares
; for some time, and sleeps: others may have its processor.

; Take some iterations of a share and do them; false if there are none to be had in the step of that number.
define internal i1 @take(ptr %pool, ptr %share, i64 %number, i64 %index) nounwind {
entry:
  %first = load atomic i64, ptr %share monotonic, align 8
  br label %look
look:
  %claims = phi i64 [ %first, %entry ], [ %newer, %claim ]
  %own = lshr i64 %claims, 32
  %same = icmp eq i64 %own, %number
  %left = and i64 %claims, 4294967295
  %any = icmp ne i64 %left, 0
  %open = and i1 %same, %any
  br i1 %open, label %claim, label %none
claim:
  %raised = add i64 %left, 3
  %part = lshr i64 %raised, 2
  %less = sub i64 %claims, %part
  %pair = cmpxchg ptr %share, i64 %claims, i64 %less acq_rel monotonic
  %newer = extractvalue { i64, i1 } %pair, 0
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %work, label %look
work:
  %is.caller = icmp eq i64 %index, 0
  br i1 %is.caller, label %call, label %note
note:
  %holder.at = getelementptr %Share, ptr %share, i32 0, i32 2
  store atomic i64 %index, ptr %holder.at monotonic, align 8
  br label %call
call:
  %end.at = getelementptr %Share, ptr %share, i32 0, i32 1
  %end = load i64, ptr %end.at
  %begin = sub i64 %end, %left
  %stop = add i64 %begin, %part
  %function.at = getelementptr %Pool, ptr %pool, i32 0, i32 2
  %function = load ptr, ptr %function.at
  %args.at = getelementptr %Pool, ptr %pool, i32 0, i32 3
  %args = load ptr, ptr %args.at
  call void %function(ptr %args, i64 %begin, i64 %stop)
  %done.at = getelementptr %Share, ptr %share, i32 0, i32 4
  %part.i32 = trunc i64 %part to i32
  %twice = shl i32 %part.i32, 1
  call void @add(ptr %done.at, i32 %twice)
  ret i1 true
none:
  ret i1 false
}

; Do what is left of a share.
define internal void @exhaust(ptr %pool, ptr %share, i64 %number, i64 %index) nounwind {
entry:
  br label %next
next:
  %more = call i1 @take(ptr %pool, ptr %share, i64 %number, i64 %index)
  br i1 %more, label %next, label %done
done:
  ret void
}

; Divide the iterations of a step among the threads that are there. The number of the step is the next count of the
; go word.
define internal void @divide(ptr %pool, ptr %first, ptr %shares, i64 %threads, i64 %present, i64 %iterations,
                             i64 %number) nounwind {
entry:
  %less = sub i64 %present, 1
  %high = shl i64 %number, 32
  br label %each
each:
  %t = phi i64 [ 0, %entry ], [ %t.next, %next ]
  %rank = phi i64 [ 0, %entry ], [ %rank.next, %next ]
  %begin = phi i64 [ 0, %entry ], [ %end, %next ]
  %thread = getelementptr %Thread, ptr %first, i64 %t
  %share = getelementptr %Share, ptr %shares, i64 %t
  %until.at = getelementptr %Thread, ptr %thread, i32 0, i32 3
  %until = load i64, ptr %until.at
  %there = icmp eq i64 %until, 0
  br i1 %there, label %some, label %next
some:                                                  ; end = ceil((rank + 1) * iterations / present): the rest
  %after = add i64 %rank, 1                            ; goes to the first threads, which are first at work
  %product = mul i64 %after, %iterations
  %raised = add i64 %product, %less
  %some.end = udiv i64 %raised, %present
  br label %next
next:
  %end = phi i64 [ %begin, %each ], [ %some.end, %some ]
  %rank.next = phi i64 [ %rank, %each ], [ %after, %some ]
  %size = sub i64 %end, %begin
  %size.i32 = trunc i64 %size to i32
  %twice = shl i32 %size.i32, 1
  %goal.at = getelementptr %Thread, ptr %thread, i32 0, i32 5
  %goal = load i32, ptr %goal.at
  %goal.new = add i32 %goal, %twice
  store i32 %goal.new, ptr %goal.at
  %end.at = getelementptr %Share, ptr %share, i32 0, i32 1
  store i64 %end, ptr %end.at
  %claims = or i64 %high, %size
  store atomic i64 %claims, ptr %share release, align 8
  %t.next = add i64 %t, 1
  %last = icmp eq i64 %t.next, %threads
  br i1 %last, label %done, label %each
done:
  ret void
}

; Whether all of the shares of a thread so far are done.
define internal i1 @is_done(ptr %thread, ptr %share) alwaysinline nounwind {
  %goal.at = getelementptr %Thread, ptr %thread, i32 0, i32 5
  %goal = load i32, ptr %goal.at
  %done.at = getelementptr %Share, ptr %share, i32 0, i32 4
  %value = load atomic i32, ptr %done.at acquire, align 4
  %done = call i1 @reached(i32 %value, i32 %goal)
  ret i1 %done
}

; Wait for what others have taken of a share. Who holds it up for long is absent for four times as long. The caller began
; with the step at `start`.
define internal void @outwait(ptr %pool, ptr %first, ptr %thread, ptr %share, i64 %start) noinline nounwind {
entry:
  %begin = call i64 @now()
  %patience.at = getelementptr %Pool, ptr %pool, i32 0, i32 8
  %patience_ns = load i64, ptr %patience.at
  %goal.at = getelementptr %Thread, ptr %thread, i32 0, i32 5
  %goal = load i32, ptr %goal.at
  %done.at = getelementptr %Share, ptr %share, i32 0, i32 4
  call void @await(ptr %pool, ptr %done.at, i32 %goal, i64 %patience_ns)
  %end = call i64 @now()
  %waited = sub i64 %end, %begin
  %worked = sub i64 %begin, %start
  %twice = shl i64 %worked, 1
  %limit = add i64 %twice, 200000                      ; 0.2 ms
  %late = icmp sgt i64 %waited, %limit
  br i1 %late, label %who, label %done
who:
  %holder.at = getelementptr %Share, ptr %share, i32 0, i32 2
  %holder = load atomic i64, ptr %holder.at monotonic, align 8
  %late.thread = getelementptr %Thread, ptr %first, i64 %holder
  %until.at = getelementptr %Thread, ptr %late.thread, i32 0, i32 3
  %until = load i64, ptr %until.at
  %there = icmp eq i64 %until, 0
  %known = icmp ne i64 %holder, 0
  %leaves = and i1 %there, %known
  br i1 %leaves, label %leave, label %done
leave:
  %long = shl i64 %waited, 2
  %until.new = add i64 %end, %long
  store atomic i64 %until.new, ptr %until.at monotonic, align 8
  %absent.at = getelementptr %Pool, ptr %pool, i32 0, i32 12
  %absent = load i64, ptr %absent.at
  %absent.new = add i64 %absent, 1
  store i64 %absent.new, ptr %absent.at
  br label %done
done:
  ret void
}

; Call those back whose absence is over.
define internal void @call_back(ptr %pool, ptr %first, i64 %threads) noinline nounwind {
entry:
  %time = call i64 @now()
  br label %each
each:
  %t = phi i64 [ 0, %entry ], [ %t.next, %next ]
  %thread = getelementptr %Thread, ptr %first, i64 %t
  %until.at = getelementptr %Thread, ptr %thread, i32 0, i32 3
  %until = load i64, ptr %until.at
  %away = icmp ne i64 %until, 0
  %over = icmp sge i64 %time, %until
  %comes = and i1 %away, %over
  br i1 %comes, label %come, label %next
come:
  store atomic i64 0, ptr %until.at monotonic, align 8
  %absent.at = getelementptr %Pool, ptr %pool, i32 0, i32 12
  %absent = load i64, ptr %absent.at
  %absent.new = sub i64 %absent, 1
  store i64 %absent.new, ptr %absent.at
  %call.at = getelementptr %Thread, ptr %thread, i32 0, i32 4
  call void @add(ptr %call.at, i32 2)
  br label %next
next:
  %t.next = add i64 %t, 1
  %last = icmp eq i64 %t.next, %threads
  br i1 %last, label %done, label %each
done:
  ret void
}

; A step on all threads.
define internal void @share(ptr %pool, ptr %function, ptr %args, i64 %iterations) nounwind {
entry:
  %threads.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %threads = load i64, ptr %threads.at
  %first = getelementptr %Pool, ptr %pool, i64 1
  %shares = getelementptr %Thread, ptr %first, i64 %threads
  %absent.at = getelementptr %Pool, ptr %pool, i32 0, i32 12
  %absent = load i64, ptr %absent.at
  %all = icmp eq i64 %absent, 0
  br i1 %all, label %many, label %few
few:
  call void @call_back(ptr %pool, ptr %first, i64 %threads)
  %absent.now = load i64, ptr %absent.at
  %present.few = sub i64 %threads, %absent.now
  %alone = icmp eq i64 %present.few, 1
  br i1 %alone, label %serial, label %many
serial:
  call void %function(ptr %args, i64 0, i64 %iterations)
  ret void
many:
  %present = phi i64 [ %threads, %entry ], [ %present.few, %few ]
  %function.at = getelementptr %Pool, ptr %pool, i32 0, i32 2
  store ptr %function, ptr %function.at
  %args.at = getelementptr %Pool, ptr %pool, i32 0, i32 3
  store ptr %args, ptr %args.at
  %go = load atomic i32, ptr %pool monotonic, align 4
  %count = and i32 %go, -2
  %count.new = add i32 %count, 2
  %number = zext i32 %count.new to i64
  call void @divide(ptr %pool, ptr %first, ptr %shares, i64 %threads, i64 %present, i64 %iterations, i64 %number)
  call void @signal(ptr %pool, i32 %count.new)
  %start = call i64 @now()
  call void @exhaust(ptr %pool, ptr %shares, i64 %number, i64 0)
  br label %look
look:
  %t = phi i64 [ 1, %many ], [ %t.next, %looked ]
  %look.thread = getelementptr %Thread, ptr %first, i64 %t
  %look.share = getelementptr %Share, ptr %shares, i64 %t
  %over = call i1 @is_done(ptr %look.thread, ptr %look.share)
  br i1 %over, label %looked, label %help
help:
  call void @exhaust(ptr %pool, ptr %look.share, i64 %number, i64 0)
  br label %looked
looked:
  %t.next = add i64 %t, 1
  %t.last = icmp eq i64 %t.next, %threads
  br i1 %t.last, label %meet, label %look
meet:
  %m = phi i64 [ 0, %looked ], [ %m.next, %met ]
  %thread = getelementptr %Thread, ptr %first, i64 %m
  %share = getelementptr %Share, ptr %shares, i64 %m
  %done = call i1 @is_done(ptr %thread, ptr %share)
  br i1 %done, label %met, label %wait
wait:
  call void @outwait(ptr %pool, ptr %first, ptr %thread, ptr %share, i64 %start)
  br label %met
met:
  %m.next = add i64 %m, 1
  %m.last = icmp eq i64 %m.next, %threads
  br i1 %m.last, label %end, label %meet
end:
  ret void
}

