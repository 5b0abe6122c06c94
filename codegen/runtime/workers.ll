; The workers of the pool in pool.ll. Exported:
;   tw_pool_create, tw_pool_destroy   start and join the workers

declare ptr @aligned_alloc(i64, i64) nounwind
declare void @free(ptr) nounwind
declare i32 @pthread_create(ptr, ptr, ptr, ptr) nounwind
declare i32 @pthread_join(i64, ptr) nounwind
declare i32 @pthread_attr_init(ptr) nounwind
declare i32 @pthread_attr_setstacksize(ptr, i64) nounwind
declare i32 @pthread_attr_destroy(ptr) nounwind
declare i32 @pthread_setname_np(i64, ptr) nounwind
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

@thread_name = internal constant [11 x i8] c"tunewright\00"

; Wait for steps, and do what can be had of them: of the own share, then of three more, as each look at one moves a line.
; An absent worker sleeps until it is called back.
define internal ptr @worker(ptr %thread) nounwind {
entry:
  %pool = load ptr, ptr %thread
  %index.at = getelementptr %Thread, ptr %thread, i32 0, i32 1
  %index = load i64, ptr %index.at
  %until.at = getelementptr %Thread, ptr %thread, i32 0, i32 3
  %call.at = getelementptr %Thread, ptr %thread, i32 0, i32 4
  %stop.at = getelementptr %Pool, ptr %pool, i32 0, i32 4
  %threads.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %threads = load i64, ptr %threads.at
  %idle.at = getelementptr %Pool, ptr %pool, i32 0, i32 9
  %idle_ns = load i64, ptr %idle.at
  %first = getelementptr %Pool, ptr %pool, i64 1
  %shares = getelementptr %Thread, ptr %first, i64 %threads
  %looks = call i64 @llvm.umin.i64(i64 %threads, i64 4)
  br label %next
next:
  %seen = phi i32 [ 0, %entry ], [ %seen, %away ], [ %count, %helped ]
  %calls = phi i32 [ 0, %entry ], [ %call.goal, %away ], [ %calls, %helped ]
  %until = load atomic i64, ptr %until.at monotonic, align 8
  %there = icmp eq i64 %until, 0
  br i1 %there, label %ready, label %away
away:
  %call.goal = add i32 %calls, 2
  call void @await(ptr %pool, ptr %call.at, i32 %call.goal, i64 0)
  br label %next
ready:
  %goal = add i32 %seen, 2
  call void @await(ptr %pool, ptr %pool, i32 %goal, i64 %idle_ns)
  %go = load atomic i32, ptr %pool acquire, align 4
  %count = and i32 %go, -2
  %number = zext i32 %count to i64
  %stop = load atomic i64, ptr %stop.at monotonic, align 8
  %stops = icmp ne i64 %stop, 0
  br i1 %stops, label %done, label %help
help:
  %k = phi i64 [ 0, %ready ], [ %k.next, %help ]
  %sum = add i64 %index, %k
  %over = sub i64 %sum, %threads
  %wraps = icmp sge i64 %over, 0
  %t = select i1 %wraps, i64 %over, i64 %sum
  %share = getelementptr %Share, ptr %shares, i64 %t
  call void @exhaust(ptr %pool, ptr %share, i64 %number, i64 %index)
  %k.next = add i64 %k, 1
  %last = icmp eq i64 %k.next, %looks
  br i1 %last, label %helped, label %help
helped:
  br label %next
done:
  ret ptr null
}

; Stop workers 1 .. threads - 1, join them, free the pool.
define internal void @stop(ptr %pool, i64 %threads) nounwind {
entry:
  %stop.at = getelementptr %Pool, ptr %pool, i32 0, i32 4
  store atomic i64 1, ptr %stop.at monotonic, align 8
  call void @add(ptr %pool, i32 2)
  %first = getelementptr %Pool, ptr %pool, i64 1
  br label %check
check:
  %t = phi i64 [ 1, %entry ], [ %t.next, %join ]
  %more = icmp slt i64 %t, %threads
  br i1 %more, label %join, label %done
join:
  %thread = getelementptr %Thread, ptr %first, i64 %t
  %until.at = getelementptr %Thread, ptr %thread, i32 0, i32 3
  store atomic i64 0, ptr %until.at monotonic, align 8
  %call.at = getelementptr %Thread, ptr %thread, i32 0, i32 4
  call void @add(ptr %call.at, i32 2)
  %handle.at = getelementptr %Thread, ptr %thread, i32 0, i32 2
  %handle = load i64, ptr %handle.at
  %failed = call i32 @pthread_join(i64 %handle, ptr null)
  %t.next = add i64 %t, 1
  br label %check
done:
  call void @free(ptr %pool)
  ret void
}

; A pool of `threads` (at least 2) threads, the caller of tw_run being one; null if memory or threads are short.
; `places`, or null, stays the caller's.
define ptr @tw_pool_create(i64 %threads, i64 %spin_ns, i64 %patience_ns, i64 %idle_ns, i64 %stack_bytes,
                           ptr %places) nounwind {
entry:
  %attributes = alloca [128 x i8], align 16             ; pthread_attr_t is at most 64 bytes on Linux
  %cells = mul i64 %threads, 3                          ; of 128 bytes: a thread is one, a share two
  %cells.all = add i64 %cells, 2                        ; the pool itself is two
  %size = mul i64 %cells.all, 128
  %pool = call ptr @aligned_alloc(i64 128, i64 %size)
  %none = icmp eq ptr %pool, null
  br i1 %none, label %short, label %fill
short:
  ret ptr null
fill:
  call void @llvm.memset.p0.i64(ptr %pool, i8 0, i64 %size, i1 false)
  %threads.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  store i64 %threads, ptr %threads.at
  %spin.at = getelementptr %Pool, ptr %pool, i32 0, i32 7
  store i64 %spin_ns, ptr %spin.at
  %patience.at = getelementptr %Pool, ptr %pool, i32 0, i32 8
  store i64 %patience_ns, ptr %patience.at
  %idle.at = getelementptr %Pool, ptr %pool, i32 0, i32 9
  store i64 %idle_ns, ptr %idle.at
  %places.at = getelementptr %Pool, ptr %pool, i32 0, i32 10
  store ptr %places, ptr %places.at
  %placed.at = getelementptr %Pool, ptr %pool, i32 0, i32 11
  store i64 -1, ptr %placed.at
  %first = getelementptr %Pool, ptr %pool, i64 1
  %init = call i32 @pthread_attr_init(ptr %attributes)
  %sized = call i32 @pthread_attr_setstacksize(ptr %attributes, i64 %stack_bytes)
  br label %check
check:
  %t = phi i64 [ 1, %fill ], [ %t.next, %started ]
  %more = icmp slt i64 %t, %threads
  br i1 %more, label %start, label %complete
start:
  %thread = getelementptr %Thread, ptr %first, i64 %t
  store ptr %pool, ptr %thread
  %index.at = getelementptr %Thread, ptr %thread, i32 0, i32 1
  store i64 %t, ptr %index.at
  %handle.at = getelementptr %Thread, ptr %thread, i32 0, i32 2
  %failed = call i32 @pthread_create(ptr %handle.at, ptr %attributes, ptr @worker, ptr %thread)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %started, label %undo
started:
  %handle = load i64, ptr %handle.at
  %named = call i32 @pthread_setname_np(i64 %handle, ptr @thread_name)
  %t.next = add i64 %t, 1
  br label %check
undo:
  %gone.0 = call i32 @pthread_attr_destroy(ptr %attributes)
  call void @stop(ptr %pool, i64 %t)
  ret ptr null
complete:
  %gone.1 = call i32 @pthread_attr_destroy(ptr %attributes)
  ret ptr %pool
}

; Stop and join the workers and free the pool; nobody may be in tw_run or tw_time.
define void @tw_pool_destroy(ptr %pool) nounwind {
  %threads.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %threads = load i64, ptr %threads.at
  call void @stop(ptr %pool, i64 %threads)
  ret void
}
