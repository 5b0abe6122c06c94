; The thread pool: runs a program, an array of steps, on all threads. No call goes back to Python.
; Compiled together with <architecture>.ll, which defines @futex_number and @relax, workers.ll, which starts and joins
; the workers, shares.ll, which divides a step among threads, and control.ll, which has what loops do. Linux: sleeping is
; done by futexes. Exported:
;   tw_run    one run of a program
;   tw_time   timed samples of a program
;
; Words. All waiting is for 32-bit words of one kind: a count that only grows, by even numbers, whose lowest bit says
; "somebody sleeps on this word". @signal stores a new count, @add raises it, @await waits until a count is reached.
; The difference of two counts is compared as a signed number, so counts may wrap.
;
; Memory order. @signal exchanges the word with release order, and so does @add; @await ends with an acquire load that
; saw that value or a later one, so all that was written before a signal is visible behind the await that it ended. In
; between, only a sleeper's compare-exchange writes the word; it is a read-modify-write and so does not break the release
; sequence. The exchange also decides the race between signalling and going to sleep: either it returns the sleeper's
; bit and the signaller wakes the sleeper, or the sleeper's compare-exchange fails, as may its futex call, and it looks
; again.
;
; A step: its function, that function's array of pointers, and its iterations; one of one iteration runs on the calling
; thread. A step whose function is null is a jump, to the step that its iterations say, taken if the byte is 0 that its
; array points to; else the next step follows.
%Step = type { ptr, ptr, i64 }

; 128 bytes, a pair of lines (neighbours are prefetched together), for what the workers await and read: go word, the
; function of the step and its array, and whether to stop. Then 128 bytes that stay: threads, nanoseconds to wait without
; yielding, to wait for others before sleeping, and to wait for work before sleeping, the places or null, the caller's
; group that the workers are placed for, and how many threads are absent. Then the threads, then the shares.
%Pool = type { i32, i32, ptr, ptr, i64, [96 x i8], i64, i64, i64, i64, ptr, i64, i64, [72 x i8] }

; The pool, this thread's index, its handle; when its absence ends, 0 where it is there; the word that calls it back; the
; count at which all of its shares so far are done.
%Thread = type { ptr, i64, i64, i64, i32, i32, [88 x i8] }

; The number of the step above the iterations that nobody has taken; where they end; the worker that took some last. Then
; the word of what is done: two for each iteration.
%Share = type { i64, i64, i64, [104 x i8], i32, [124 x i8] }

; The group of each processor, -1 for none, and for each group the set of its processors as the kernel writes it.
%Places = type { [1024 x i64], [0 x [128 x i8]] }

declare i64 @syscall(i64, ...) nounwind
declare i32 @clock_gettime(i32, ptr) nounwind
declare i32 @sched_yield() nounwind
declare i32 @sched_getcpu() nounwind
declare i32 @pthread_setaffinity_np(i64, i64, ptr) nounwind
declare i64 @llvm.umin.i64(i64, i64)

; The monotonic clock in nanoseconds.
define internal i64 @now() nounwind {
  %time = alloca { i64, i64 }
  %failed = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr { i64, i64 }, ptr %time, i32 0, i32 1
  %rest = load i64, ptr %rest.at
  %scaled = mul i64 %seconds, 1000000000
  %total = add i64 %scaled, %rest
  ret i64 %total
}

; ---- words

define internal i1 @reached(i32 %value, i32 %goal) alwaysinline nounwind {
  %count = and i32 %value, -2
  %ahead = sub i32 %count, %goal
  %done = icmp sge i32 %ahead, 0
  ret i1 %done
}

; Wake all that sleep on a word. 129 is FUTEX_WAKE for this process alone.
define internal void @wake(ptr %word) noinline cold nounwind {
  %number = load i64, ptr @futex_number
  %woken = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i64 129, i64 2147483647, ptr null, ptr null, i64 0)
  ret void
}

define internal void @signal(ptr %word, i32 %value) alwaysinline nounwind {
  %old = atomicrmw xchg ptr %word, i32 %value release
  %bit = and i32 %old, 1
  %sleeper = icmp ne i32 %bit, 0
  br i1 %sleeper, label %asleep, label %done
asleep:
  call void @wake(ptr %word)
  br label %done
done:
  ret void
}

; Raise a word, by an even number.
define internal void @add(ptr %word, i32 %more) alwaysinline nounwind {
  %old = atomicrmw add ptr %word, i32 %more release
  %bit = and i32 %old, 1
  %sleeper = icmp ne i32 %bit, 0
  br i1 %sleeper, label %asleep, label %done
asleep:
  %marked = atomicrmw and ptr %word, i32 -2 monotonic
  call void @wake(ptr %word)
  br label %done
done:
  ret void
}

define internal void @await(ptr %pool, ptr %word, i32 %goal, i64 %patience_ns) alwaysinline nounwind {
  %value = load atomic i32, ptr %word acquire, align 4
  %there = call i1 @reached(i32 %value, i32 %goal)
  br i1 %there, label %done, label %wait
wait:
  call void @linger(ptr %pool, ptr %word, i32 %goal, i64 %patience_ns)
  br label %done
done:
  ret void
}

; Spin, looking at the clock once in 64 times; after a few microseconds also give the processor away that often, in case
; a thread that is waited for wants it; when out of patience, sleep until the goal is reached.
define internal void @linger(ptr %pool, ptr %word, i32 %goal, i64 %patience_ns) noinline nounwind {
entry:
  %spin.at = getelementptr %Pool, ptr %pool, i32 0, i32 7
  %spin_ns = load i64, ptr %spin.at
  %begin = call i64 @now()
  br label %spin
spin:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %again ], [ 0, %patient ], [ 0, %give ]
  call void @relax()
  %seen = load atomic i32, ptr %word acquire, align 4
  %there = call i1 @reached(i32 %seen, i32 %goal)
  br i1 %there, label %done, label %again
again:
  %turn.next = add i64 %turn, 1
  %look = icmp eq i64 %turn.next, 64
  br i1 %look, label %clock, label %spin
clock:
  %time = call i64 @now()
  %spent = sub i64 %time, %begin
  %more = icmp slt i64 %spent, %patience_ns
  br i1 %more, label %patient, label %drowsy
patient:
  %soon = icmp slt i64 %spent, %spin_ns
  br i1 %soon, label %spin, label %give
give:
  %given = call i32 @sched_yield()
  br label %spin
drowsy:
  %value = load atomic i32, ptr %word acquire, align 4
  %late = call i1 @reached(i32 %value, i32 %goal)
  br i1 %late, label %done, label %mark
mark:
  %marked = or i32 %value, 1
  %already = icmp eq i32 %value, %marked
  br i1 %already, label %sleep, label %claim
claim:
  %pair = cmpxchg ptr %word, i32 %value, i32 %marked monotonic monotonic
  %claimed = extractvalue { i32, i1 } %pair, 1
  br i1 %claimed, label %sleep, label %drowsy
sleep:                                            ; 128 is FUTEX_WAIT for this process alone; it returns at once
  %number = load i64, ptr @futex_number           ; where the word is no longer `marked`
  %expected = zext i32 %marked to i64
  %woken = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i64 128, i64 %expected, ptr null, ptr null, i64 0)
  br label %drowsy
done:
  ret void
}

; ---- a run

; Where a jump leads: to `place` if the byte is 0 that `args` points to, else to `after`.
define internal i64 @target(ptr %args, i64 %place, i64 %after) alwaysinline nounwind {
  %byte.at = load ptr, ptr %args
  %byte = load i8, ptr %byte.at
  %taken = icmp eq i8 %byte, 0
  %next = select i1 %taken, i64 %place, i64 %after
  ret i64 %next
}

; `repeats` (at least 1) runs of a program of some steps. Without a pool the calling thread is the only one.
define internal void @walk(ptr %pool, ptr %steps, i64 %count, i64 %repeats) nounwind {
entry:
  %alone = icmp eq ptr %pool, null
  br label %run
run:
  %n = phi i64 [ 0, %entry ], [ %n.next, %run.end ]
  br label %step
step:
  %s = phi i64 [ 0, %run ], [ %s.next, %step.end ]
  %step.at = getelementptr %Step, ptr %steps, i64 %s
  %function = load ptr, ptr %step.at
  %args.at = getelementptr %Step, ptr %step.at, i32 0, i32 1
  %args = load ptr, ptr %args.at
  %iterations.at = getelementptr %Step, ptr %step.at, i32 0, i32 2
  %iterations = load i64, ptr %iterations.at
  %s.after = add i64 %s, 1
  %jumps = icmp eq ptr %function, null
  br i1 %jumps, label %jump, label %work
jump:
  %s.jumped = call i64 @target(ptr %args, i64 %iterations, i64 %s.after)
  br label %step.end
work:
  %one = icmp eq i64 %iterations, 1
  %here = or i1 %one, %alone
  br i1 %here, label %call, label %divided
call:
  call void %function(ptr %args, i64 0, i64 %iterations)
  br label %step.end
divided:
  call void @share(ptr %pool, ptr %function, ptr %args, i64 %iterations)
  br label %step.end
step.end:
  %s.next = phi i64 [ %s.jumped, %jump ], [ %s.after, %call ], [ %s.after, %divided ]
  %s.last = icmp eq i64 %s.next, %count
  br i1 %s.last, label %run.end, label %step
run.end:
  %n.next = add i64 %n, 1
  %n.last = icmp eq i64 %n.next, %repeats
  br i1 %n.last, label %done, label %run
done:
  ret void
}

; Keep the workers off the processors near the calling thread's, and off each other's: thread t gets the group t behind
; the caller's. Left alone, Linux in a virtual machine wakes a worker on its waker's processor, as it takes a sleeping
; virtual processor for a busy one, and then leaves both there for many runs. The caller's own set is not touched.
define internal void @place(ptr %pool) nounwind {
entry:
  %places.at = getelementptr %Pool, ptr %pool, i32 0, i32 10
  %places = load ptr, ptr %places.at
  %free = icmp eq ptr %places, null
  br i1 %free, label %done, label %ask
ask:
  %cpu.i32 = call i32 @sched_getcpu()
  %cpu = sext i32 %cpu.i32 to i64
  %known = icmp ult i64 %cpu, 1024
  br i1 %known, label %find, label %done
find:
  %group.at = getelementptr %Places, ptr %places, i32 0, i32 0, i64 %cpu
  %group = load i64, ptr %group.at
  %inside = icmp sge i64 %group, 0
  br i1 %inside, label %compare, label %done
compare:
  %placed.at = getelementptr %Pool, ptr %pool, i32 0, i32 11
  %placed = load i64, ptr %placed.at
  %same = icmp eq i64 %group, %placed
  br i1 %same, label %done, label %move
move:
  store i64 %group, ptr %placed.at
  %threads.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %threads = load i64, ptr %threads.at
  %first = getelementptr %Pool, ptr %pool, i64 1
  br label %thread
thread:
  %t = phi i64 [ 1, %move ], [ %t.next, %thread ]
  %handle.at = getelementptr %Thread, ptr %first, i64 %t, i32 2
  %handle = load i64, ptr %handle.at
  %sum = add i64 %group, %t
  %own = urem i64 %sum, %threads
  %set = getelementptr %Places, ptr %places, i32 0, i32 1, i64 %own
  %failed = call i32 @pthread_setaffinity_np(i64 %handle, i64 128, ptr %set)
  %t.next = add i64 %t, 1
  %last = icmp eq i64 %t.next, %threads
  br i1 %last, label %done, label %thread
done:
  ret void
}

; `repeats` (at least 1) runs; the calling thread is thread 0. Without a pool it is the only one.
define internal void @work(ptr %pool, ptr %steps, i64 %count, i64 %repeats) nounwind {
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %none, label %some
none:
  ret void
some:
  %alone = icmp eq ptr %pool, null
  br i1 %alone, label %run, label %many
many:
  call void @place(ptr %pool)
  br label %run
run:
  call void @walk(ptr %pool, ptr %steps, i64 %count, i64 %repeats)
  ret void
}

; Run a program of `count` steps once. Where `word` is not null, an interrupt sets it, see control.ll.
define void @tw_run(ptr %pool, ptr %steps, i64 %count, ptr %word) nounwind {
entry:
  %plain = icmp eq ptr %word, null
  br i1 %plain, label %run, label %watched
run:
  call void @work(ptr %pool, ptr %steps, i64 %count, i64 1)
  ret void
watched:
  call void @watch(ptr %word)
  call void @work(ptr %pool, ptr %steps, i64 %count, i64 1)
  call void @unwatch()
  ret void
}

; Time up to `samples` samples of `repeats` runs each into `out_ns`; gives how many were taken. It stops early at
; `deadline_ns` of the monotonic clock.
define i64 @tw_time(ptr %pool, ptr %steps, i64 %count, i64 %repeats, i64 %samples, i64 %deadline_ns,
                    ptr %out_ns) nounwind {
entry:
  br label %sample
sample:
  %n = phi i64 [ 0, %entry ], [ %taken, %next ]
  %begin = call i64 @now()
  call void @work(ptr %pool, ptr %steps, i64 %count, i64 %repeats)
  %end = call i64 @now()
  %spent = sub i64 %end, %begin
  %out.at = getelementptr i64, ptr %out_ns, i64 %n
  store i64 %spent, ptr %out.at
  %taken = add i64 %n, 1
  %late = icmp sge i64 %end, %deadline_ns
  %all = icmp eq i64 %taken, %samples
  %quit = or i1 %late, %all
  br i1 %quit, label %done, label %next
next:
  br label %sample
done:
  ret i64 %taken
}
