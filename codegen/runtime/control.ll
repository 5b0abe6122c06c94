; Control flow of programs: what the steps beside kernels do. They are called as kernels are, and run on thread 0 (a
; large copy on all). Exported, as their addresses stand in steps:
;   tw_copy         copies memory
;   tw_loop_start   before the first iteration of a loop
;   tw_loop_next    behind each iteration
;
; Interrupts. A loop may run for ever, and Python hears of Ctrl-C only when a run is over. So a run may watch: an
; interrupt then sets a word, at which all loops of the program end, and goes on to the handler that was there before.

declare i32 @sigaction(i32, ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.smin.i64(i64, i64)

; To, source, bytes: an iteration copies 65,536 of them.
%Copy = type { ptr, ptr, i64 }

; The loop's words; the trip count or null; the condition, a byte, or null; the most iterations; its moves and how many
; there are; the word that ends it where it is not zero.
%Loop = type { ptr, ptr, ptr, i64, ptr, i64, ptr }

; Iterations done, the most iterations, whether another one follows, whether none does. A jump reads the last two.
%Words = type { i64, i64, i64, i64 }

; An address that differs from iteration to iteration: the cell that holds it, the cell with the address that it moves
; from, and what is added: ((iterations done + phase) & mask) * stride. A mask of 1 changes between two buffers.
%Move = type { ptr, ptr, i64, i64, i64 }

define void @tw_copy(ptr %args, i64 %begin, i64 %end) nounwind {
  %to = load ptr, ptr %args
  %source.at = getelementptr %Copy, ptr %args, i32 0, i32 1
  %source = load ptr, ptr %source.at
  %size.at = getelementptr %Copy, ptr %args, i32 0, i32 2
  %size = load i64, ptr %size.at
  %first = mul i64 %begin, 65536
  %last.whole = mul i64 %end, 65536
  %last = call i64 @llvm.smin.i64(i64 %last.whole, i64 %size)
  %count = sub i64 %last, %first
  %to.part = getelementptr i8, ptr %to, i64 %first
  %source.part = getelementptr i8, ptr %source, i64 %first
  call void @llvm.memcpy.p0.p0.i64(ptr %to.part, ptr %source.part, i64 %count, i1 false)
  ret void
}

define void @tw_loop_start(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %words = load ptr, ptr %args
  %trips.at = getelementptr %Loop, ptr %args, i32 0, i32 1
  %trips = load ptr, ptr %trips.at
  %most.at = getelementptr %Loop, ptr %args, i32 0, i32 3
  %most = load i64, ptr %most.at
  %limit.at = getelementptr %Words, ptr %words, i32 0, i32 1
  %free = icmp eq ptr %trips, null
  br i1 %free, label %begins, label %counted
counted:
  %given = load i64, ptr %trips
  br label %begins
begins:
  %limit = phi i64 [ %most, %entry ], [ %given, %counted ]
  store i64 %limit, ptr %limit.at
  call void @iterate(ptr %args, ptr %words, i64 0)
  ret void
}

define void @tw_loop_next(ptr %args, i64 %begin, i64 %end) nounwind {
  %words = load ptr, ptr %args
  %done = load i64, ptr %words
  %next = add i64 %done, 1
  call void @iterate(ptr %args, ptr %words, i64 %next)
  ret void
}

; Make all ready for iteration `number`, if there is to be one.
define internal void @iterate(ptr %args, ptr %words, i64 %number) nounwind {
entry:
  store i64 %number, ptr %words
  %limit.at = getelementptr %Words, ptr %words, i32 0, i32 1
  %limit = load i64, ptr %limit.at
  %below = icmp slt i64 %number, %limit
  %condition.at = getelementptr %Loop, ptr %args, i32 0, i32 2
  %condition = load ptr, ptr %condition.at
  %always = icmp eq ptr %condition, null
  br i1 %always, label %decide, label %ask
ask:
  %byte = load i8, ptr %condition
  %holds = icmp ne i8 %byte, 0
  br label %decide
decide:
  %wanted = phi i1 [ true, %entry ], [ %holds, %ask ]
  %may = and i1 %below, %wanted
  %halt.at = getelementptr %Loop, ptr %args, i32 0, i32 6
  %halt = load ptr, ptr %halt.at
  %halted = load atomic i64, ptr %halt monotonic, align 8
  %free = icmp eq i64 %halted, 0
  %go = and i1 %may, %free
  %go.word = zext i1 %go to i64
  %stop.word = xor i64 %go.word, 1
  %go.at = getelementptr %Words, ptr %words, i32 0, i32 2
  store i64 %go.word, ptr %go.at
  %stop.at = getelementptr %Words, ptr %words, i32 0, i32 3
  store i64 %stop.word, ptr %stop.at
  %moves.at = getelementptr %Loop, ptr %args, i32 0, i32 4
  %moves = load ptr, ptr %moves.at
  %count.at = getelementptr %Loop, ptr %args, i32 0, i32 5
  %count = load i64, ptr %count.at
  br label %check
check:
  %m = phi i64 [ 0, %decide ], [ %m.next, %move ]
  %more = icmp slt i64 %m, %count
  br i1 %more, label %move, label %done
move:
  %move.at = getelementptr %Move, ptr %moves, i64 %m
  %cell = load ptr, ptr %move.at
  %base.at = getelementptr %Move, ptr %move.at, i32 0, i32 1
  %base.cell = load ptr, ptr %base.at
  %base = load i64, ptr %base.cell
  %phase.at = getelementptr %Move, ptr %move.at, i32 0, i32 2
  %phase = load i64, ptr %phase.at
  %mask.at = getelementptr %Move, ptr %move.at, i32 0, i32 3
  %mask = load i64, ptr %mask.at
  %stride.at = getelementptr %Move, ptr %move.at, i32 0, i32 4
  %stride = load i64, ptr %stride.at
  %turn = add i64 %number, %phase
  %place = and i64 %turn, %mask
  %offset = mul i64 %place, %stride
  %address = add i64 %base, %offset
  store i64 %address, ptr %cell
  %m.next = add i64 %m, 1
  br label %check
done:
  ret void
}

; ---- interrupts

; The word that an interrupt sets, and the C library's struct sigaction of before (152 bytes on x86-64 and AArch64), whose
; first field is the handler.
@watched = internal global ptr null
@former = internal global [256 x i8] zeroinitializer, align 16

define internal void @interrupted(i32 %number, ptr %info, ptr %context) nounwind {
  %word = load ptr, ptr @watched
  store atomic i64 1, ptr %word monotonic, align 8
  %handler = load ptr, ptr @former
  call void %handler(i32 %number, ptr %info, ptr %context)
  ret void
}

; Have SIGINT (2) set a word from now on, unless the process ignores it or is ended by it. One thread may watch at a time.
define internal void @watch(ptr %word) nounwind {
entry:
  %own = alloca [256 x i8], align 16
  store ptr %word, ptr @watched
  %failed.0 = call i32 @sigaction(i32 2, ptr null, ptr @former)
  %handler = load i64, ptr @former
  %heard = icmp ugt i64 %handler, 1                    ; 0 and 1 stand for the two
  br i1 %heard, label %set, label %done
set:
  call void @llvm.memcpy.p0.p0.i64(ptr %own, ptr @former, i64 256, i1 false)
  store ptr @interrupted, ptr %own
  %failed.1 = call i32 @sigaction(i32 2, ptr %own, ptr null)
  br label %done
done:
  ret void
}

define internal void @unwatch() nounwind {
  %failed = call i32 @sigaction(i32 2, ptr @former, ptr null)
  ret void
}
