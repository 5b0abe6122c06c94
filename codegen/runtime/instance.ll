; Instances of a program that is linked into a shared object: memory of their own for what changes while it runs.
; `static_program.py` writes @tw_program, in words of 64 bits:
;   0 arguments, 1 their number, 2 steps, 3 their number, 4 bytes of the arena, 5 cells of the arena, 6 their number,
;   7 cells within the arguments, 8 their number, 9 inputs, 10 their number, 11 outputs, 12 their number,
;   13 requirements, 14 their number, 15 bits of XCR0, 16 whether matrix registers are asked for
; A port is: bytes, number of cells, cells, kind of source, source, offset. A cell is its number and the offset of what it
; points to. Sources are those of outputs that kernels don't write where the caller wants them: 1 the arena, 2 memory that
; is always the same, 3 an input, 4 an output. A requirement is: leaf, subleaf, register and bit of CPUID, name.
; An instance is: pool, arguments, steps, arena, mutex.

@tw_program = external global [17 x i64]

declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)

define internal i64 @program_word(i64 %n) alwaysinline {
  %at = getelementptr i64, ptr @tw_program, i64 %n
  %value = load i64, ptr %at
  ret i64 %value
}

define internal ptr @program_address(i64 %n) alwaysinline {
  %at = getelementptr ptr, ptr @tw_program, i64 %n
  %value = load ptr, ptr %at
  ret ptr %value
}

define internal i64 @row_word(ptr %row, i64 %n) alwaysinline {
  %at = getelementptr i64, ptr %row, i64 %n
  %value = load i64, ptr %at
  ret i64 %value
}

define internal ptr @row_address(ptr %row, i64 %n) alwaysinline {
  %at = getelementptr ptr, ptr %row, i64 %n
  %value = load ptr, ptr %at
  ret ptr %value
}

; The name of the first thing that this processor, or the system, does not have and the code needs; null for none.
define ptr @tw_missing() nounwind {
entry:
  %registers = alloca [4 x i32]
  %count = call i64 @program_word(i64 14)
  %rows = call ptr @program_address(i64 13)
  br label %requirement
requirement:
  %n = phi i64 [ 0, %entry ], [ %next, %met ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %ask, label %system
ask:
  %row.offset = mul i64 %n, 5
  %row = getelementptr i64, ptr %rows, i64 %row.offset
  %leaf = call i64 @row_word(ptr %row, i64 0)
  %subleaf = call i64 @row_word(ptr %row, i64 1)
  %leaf.32 = trunc i64 %leaf to i32
  %subleaf.32 = trunc i64 %subleaf to i32
  %range = and i32 %leaf.32, -2147483648                ; extended leaves have a range of their own
  %basic = call { i32, i32, i32, i32 } asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx}"(i32 %range, i32 0)
  %highest = extractvalue { i32, i32, i32, i32 } %basic, 0
  %is_leaf = icmp uge i32 %highest, %leaf.32
  br i1 %is_leaf, label %look, label %missing
look:
  %told = call { i32, i32, i32, i32 } asm sideeffect "cpuid",
    "={ax},={bx},={cx},={dx},{ax},{cx}"(i32 %leaf.32, i32 %subleaf.32)
  store { i32, i32, i32, i32 } %told, ptr %registers
  %register = call i64 @row_word(ptr %row, i64 2)
  %word.at = getelementptr i32, ptr %registers, i64 %register
  %word = load i32, ptr %word.at
  %bit = call i64 @row_word(ptr %row, i64 3)
  %bit.32 = trunc i64 %bit to i32
  %shifted = lshr i32 %word, %bit.32
  %is_set = trunc i32 %shifted to i1
  br i1 %is_set, label %met, label %missing
met:
  %next = add i64 %n, 1
  br label %requirement
missing:
  %name = call ptr @row_address(ptr %row, i64 4)
  ret ptr %name
system:
  %mask = call i64 @program_word(i64 15)
  %is_masked = icmp ne i64 %mask, 0
  br i1 %is_masked, label %xcr, label %permission
xcr:                                        ; the requirements had OSXSAVE, without which this is no instruction
  %enabled = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 0)
  %low = extractvalue { i32, i32 } %enabled, 0
  %low.64 = zext i32 %low to i64
  %has = and i64 %low.64, %mask
  %is_all = icmp eq i64 %has, %mask
  br i1 %is_all, label %permission, label %no_registers
no_registers:
  ret ptr @tw_registers_name
permission:
  %asks = call i64 @program_word(i64 16)
  %does_ask = icmp ne i64 %asks, 0
  br i1 %does_ask, label %ask_system, label %done
ask_system:                                 ; arch_prctl(ARCH_REQ_XCOMP_PERM, tile data), as allow_matrix_registers
  %refused = call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)
  %is_refused = icmp ne i64 %refused, 0
  br i1 %is_refused, label %no_registers, label %done
done:
  ret ptr null
}

@tw_registers_name = internal constant [26 x i8] c"room for vector registers\00"

; A new instance on so many threads; null where the processor lacks something, memory or threads are short.
define ptr @tw_open(i64 %threads, i64 %spin_ns, i64 %patience_ns, i64 %idle_ns, i64 %stack_bytes) nounwind {
entry:
  %lack = call ptr @tw_missing()
  %is_fit = icmp eq ptr %lack, null
  br i1 %is_fit, label %allocate, label %fail
allocate:
  %words = call i64 @program_word(i64 1)
  %count = call i64 @program_word(i64 3)
  %arena_bytes = call i64 @program_word(i64 4)
  %steps_words = mul i64 %count, 3
  %all_words = add i64 %words, %steps_words
  %own_words = add i64 %all_words, 12
  %own_bytes = mul i64 %own_words, 8
  %up = add i64 %own_bytes, 63
  %table_bytes = and i64 %up, -64
  %total = add i64 %table_bytes, %arena_bytes
  %total.up = add i64 %total, 127
  %total.bytes = and i64 %total.up, -64
  %instance = call ptr @aligned_alloc(i64 64, i64 %total.bytes)
  %is_there = icmp ne ptr %instance, null
  br i1 %is_there, label %pool, label %fail
pool:
  %is_parallel = icmp sgt i64 %threads, 1
  br i1 %is_parallel, label %start, label %fill
start:
  %started = call ptr @tw_pool_create(i64 %threads, i64 %spin_ns, i64 %patience_ns, i64 %idle_ns, i64 %stack_bytes, ptr null)
  %is_started = icmp ne ptr %started, null
  br i1 %is_started, label %fill, label %release
release:
  call void @free(ptr %instance)
  br label %fail
fill:
  %workers = phi ptr [ null, %pool ], [ %started, %start ]
  %arguments = getelementptr i64, ptr %instance, i64 12
  %steps = getelementptr i64, ptr %arguments, i64 %words
  %arena = getelementptr i8, ptr %instance, i64 %table_bytes
  store ptr %workers, ptr %instance
  %arguments.at = getelementptr ptr, ptr %instance, i64 1
  store ptr %arguments, ptr %arguments.at
  %steps.at = getelementptr ptr, ptr %instance, i64 2
  store ptr %steps, ptr %steps.at
  %arena.at = getelementptr ptr, ptr %instance, i64 3
  store ptr %arena, ptr %arena.at
  %mutex = getelementptr i64, ptr %instance, i64 4
  call void @llvm.memset.p0.i64(ptr %mutex, i8 0, i64 64, i1 false)
  %arguments.from = call ptr @program_address(i64 0)
  %arguments.bytes = mul i64 %words, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %arguments, ptr %arguments.from, i64 %arguments.bytes, i1 false)
  %steps.from = call ptr @program_address(i64 2)
  %steps.bytes = mul i64 %steps_words, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %steps, ptr %steps.from, i64 %steps.bytes, i1 false)
  %own.int = ptrtoint ptr %arguments to i64
  %arena.int = ptrtoint ptr %arena to i64
  %arena.cells = call ptr @program_address(i64 5)
  %arena.count = call i64 @program_word(i64 6)
  call void @move(ptr %arguments, ptr %arena.cells, i64 %arena.count, i64 %arena.int)
  %own.cells = call ptr @program_address(i64 7)
  %own.count = call i64 @program_word(i64 8)
  call void @move(ptr %arguments, ptr %own.cells, i64 %own.count, i64 %own.int)
  br label %step
step:
  %k = phi i64 [ 0, %fill ], [ %k.next, %move_step ]
  %k.more = icmp slt i64 %k, %count
  br i1 %k.more, label %move_step, label %done
move_step:
  %k.offset = mul i64 %k, 3
  %k.word = add i64 %k.offset, 1
  %k.at = getelementptr i64, ptr %steps, i64 %k.word
  %k.old = load i64, ptr %k.at
  %k.new = add i64 %k.old, %own.int
  store i64 %k.new, ptr %k.at
  %k.next = add i64 %k, 1
  br label %step
done:
  ret ptr %instance
fail:
  ret ptr null
}

; Add an address to the words of these numbers.
define internal void @move(ptr %words, ptr %cells, i64 %count, i64 %by) {
entry:
  br label %cell
cell:
  %n = phi i64 [ 0, %entry ], [ %next, %add ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %add, label %done
add:
  %number = call i64 @row_word(ptr %cells, i64 %n)
  %at = getelementptr i64, ptr %words, i64 %number
  %old = load i64, ptr %at
  %new = add i64 %old, %by
  store i64 %new, ptr %at
  %next = add i64 %n, 1
  br label %cell
done:
  ret void
}

; Let the cells of each port point into the memory that it is given.
define internal void @bind_ports(ptr %arguments, ptr %ports, i64 %count, ptr %memories) {
entry:
  br label %port
port:
  %n = phi i64 [ 0, %entry ], [ %next, %bound ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %take, label %done
take:
  %row.offset = mul i64 %n, 6
  %row = getelementptr i64, ptr %ports, i64 %row.offset
  %memory = call i64 @row_word(ptr %memories, i64 %n)
  %cells = call ptr @row_address(ptr %row, i64 2)
  %cells.count = call i64 @row_word(ptr %row, i64 1)
  br label %cell
cell:
  %m = phi i64 [ 0, %take ], [ %m.next, %write ]
  %m.more = icmp slt i64 %m, %cells.count
  br i1 %m.more, label %write, label %bound
write:
  %pair.offset = mul i64 %m, 2
  %pair = getelementptr i64, ptr %cells, i64 %pair.offset
  %number = call i64 @row_word(ptr %pair, i64 0)
  %offset = call i64 @row_word(ptr %pair, i64 1)
  %address = add i64 %memory, %offset
  %to = getelementptr i64, ptr %arguments, i64 %number
  store i64 %address, ptr %to
  %m.next = add i64 %m, 1
  br label %cell
bound:
  %next = add i64 %n, 1
  br label %port
done:
  ret void
}

; Run an instance once, on memory of all inputs and outputs. Callers on other threads wait for each other.
define void @tw_run_instance(ptr %instance, ptr %inputs, ptr %outputs) nounwind {
entry:
  %mutex = getelementptr i64, ptr %instance, i64 4
  call i32 @pthread_mutex_lock(ptr %mutex)
  %pool = call ptr @row_address(ptr %instance, i64 0)
  %arguments = call ptr @row_address(ptr %instance, i64 1)
  %steps = call ptr @row_address(ptr %instance, i64 2)
  %arena = call ptr @row_address(ptr %instance, i64 3)
  %in.rows = call ptr @program_address(i64 9)
  %in.count = call i64 @program_word(i64 10)
  %out.rows = call ptr @program_address(i64 11)
  %out.count = call i64 @program_word(i64 12)
  %count = call i64 @program_word(i64 3)
  call void @bind_ports(ptr %arguments, ptr %in.rows, i64 %in.count, ptr %inputs)
  call void @bind_ports(ptr %arguments, ptr %out.rows, i64 %out.count, ptr %outputs)
  call void @tw_run(ptr %pool, ptr %steps, i64 %count, ptr null)
  br label %output
output:
  %n = phi i64 [ 0, %entry ], [ %next, %given ]
  %more = icmp slt i64 %n, %out.count
  br i1 %more, label %look, label %done
look:
  %row.offset = mul i64 %n, 6
  %row = getelementptr i64, ptr %out.rows, i64 %row.offset
  %kind = call i64 @row_word(ptr %row, i64 3)
  %offset = call i64 @row_word(ptr %row, i64 5)
  switch i64 %kind, label %given [ i64 1, label %of_arena i64 2, label %of_constant i64 3, label %of_input
                                      i64 4, label %of_output ]
of_arena:
  br label %copy
of_constant:
  %constant = call ptr @row_address(ptr %row, i64 4)
  br label %copy
of_input:
  %number = call i64 @row_word(ptr %row, i64 4)
  %input = call ptr @row_address(ptr %inputs, i64 %number)
  br label %copy
of_output:
  %other = call i64 @row_word(ptr %row, i64 4)
  %written = call ptr @row_address(ptr %outputs, i64 %other)
  br label %copy
copy:
  %base = phi ptr [ %arena, %of_arena ], [ %constant, %of_constant ], [ %input, %of_input ], [ %written, %of_output ]
  %from = getelementptr i8, ptr %base, i64 %offset
  %to = call ptr @row_address(ptr %outputs, i64 %n)
  %bytes = call i64 @row_word(ptr %row, i64 0)
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  br label %given
given:
  %next = add i64 %n, 1
  br label %output
done:
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

; End an instance that nobody runs; nothing for null.
define void @tw_close(ptr %instance) nounwind {
entry:
  %is_there = icmp ne ptr %instance, null
  br i1 %is_there, label %some, label %none
some:
  %pool = call ptr @row_address(ptr %instance, i64 0)
  %is_parallel = icmp ne ptr %pool, null
  br i1 %is_parallel, label %end, label %release
end:
  call void @tw_pool_destroy(ptr %pool)
  br label %release
release:
  call void @free(ptr %instance)
  br label %none
none:
  ret void
}
