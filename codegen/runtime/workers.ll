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
declare i64 @llvm.ctlz.i64(i64, i1)

@thread_name = internal constant [11 x i8] c"tunewright\00"

define internal ptr @worker(ptr %thread) nounwind {
entry:
  %pool = load ptr, ptr %thread
  %idle.at = getelementptr %Pool, ptr %pool, i32 0, i32 10
  %idle_ns = load i64, ptr %idle.at
  br label %next
next:
  %job = phi i32 [ 0, %entry ], [ %goal, %have ]
  %goal = add i32 %job, 2
  call void @await(ptr %pool, ptr %pool, i32 %goal, i64 %idle_ns)
  %steps.at = getelementptr %Pool, ptr %pool, i32 0, i32 2
  %steps = load ptr, ptr %steps.at
  %count.at = getelementptr %Pool, ptr %pool, i32 0, i32 3
  %count = load i64, ptr %count.at
  %repeats.at = getelementptr %Pool, ptr %pool, i32 0, i32 4
  %repeats = load i64, ptr %repeats.at
  %stop = icmp slt i64 %count, 0
  br i1 %stop, label %done, label %have
have:
  call void @walk(ptr %pool, ptr %thread, ptr %steps, i64 %count, i64 %repeats)
  br label %next
done:
  ret ptr null
}

; Stop workers 1 .. threads - 1, join them, free the pool.
define internal void @stop(ptr %pool, i64 %threads) nounwind {
entry:
  call void @post(ptr %pool, ptr null, i64 -1, i64 0)
  %first = getelementptr %Pool, ptr %pool, i64 1
  br label %check
check:
  %t = phi i64 [ 1, %entry ], [ %t.next, %join ]
  %more = icmp slt i64 %t, %threads
  br i1 %more, label %join, label %done
join:
  %handle.at = getelementptr %Thread, ptr %first, i64 %t, i32 2
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
  %less = sub i64 %threads, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %less, i1 true)
  %rounds = sub i64 64, %zeros                          ; ceil(log2(threads))
  %words = mul i64 %threads, %rounds
  %cells = add i64 %words, %threads
  %cells.all = add i64 %cells, 2                        ; the pool itself is two of 128 bytes
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
  %rounds.at = getelementptr %Pool, ptr %pool, i32 0, i32 7
  store i64 %rounds, ptr %rounds.at
  %spin.at = getelementptr %Pool, ptr %pool, i32 0, i32 8
  store i64 %spin_ns, ptr %spin.at
  %patience.at = getelementptr %Pool, ptr %pool, i32 0, i32 9
  store i64 %patience_ns, ptr %patience.at
  %idle.at = getelementptr %Pool, ptr %pool, i32 0, i32 10
  store i64 %idle_ns, ptr %idle.at
  %places.at = getelementptr %Pool, ptr %pool, i32 0, i32 11
  store ptr %places, ptr %places.at
  %placed.at = getelementptr %Pool, ptr %pool, i32 0, i32 12
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
