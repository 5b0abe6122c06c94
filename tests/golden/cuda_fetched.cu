template <typename T, int N> struct alignas(sizeof(T) * N) Lanes { T at[N]; };
template <typename T> static __device__ __forceinline__ T least(T a, T b) { return b < a || b != b ? b : a; }
template <typename T> static __device__ __forceinline__ T largest(T a, T b) { return b > a || b != b ? b : a; }
static __device__ __forceinline__ float least(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
static __device__ __forceinline__ float largest(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
template <typename T> static __device__ __forceinline__ T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }
static __device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
template <typename To, typename From> static __device__ __forceinline__ To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To result;
  memcpy(&result, &x, sizeof(To));
  return result;
}
static __device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ unsigned shared_place(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}
static __device__ __forceinline__ unsigned long long global_place(const void* place) {
  return static_cast<unsigned long long>(__cvta_generic_to_global(place));
}
static __device__ __forceinline__ void warp_sync() {
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}
static __device__ __forceinline__ void mbarrier_init_1(void* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_place(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void mbarrier_init_8(void* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 8;" :: "r"(shared_place(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void mbarrier_arrive(void* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_place(barrier)) : "memory");
}
static __device__ __forceinline__ void mbarrier_wait(void* barrier, const unsigned* phase) {
  unsigned is_over;
  do {
    asm volatile("{ .reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over; }"
        : "=r"(is_over) : "r"(shared_place(barrier)), "r"(phase[0]) : "memory");
  } while (!is_over);
}
static __device__ __forceinline__ void mbarrier_expect_8192(void* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;"
      :: "r"(shared_place(barrier)) : "memory");
}
struct alignas(64) TensorMap { unsigned long long words[16]; };
static __device__ __forceinline__ void fetch_2d(
    void* to, const TensorMap* map, void* barrier, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      :: "r"(shared_place(to)), "l"(map), "r"(shared_place(barrier)), "r"(c0), "r"(c1)
      : "memory");
}

extern "C" __global__ void __launch_bounds__(384, 1) kernel_p0(const float* p0, float* p1, const __grid_constant__ TensorMap m0) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const int v1 = blockIdx.x;
  float* s2 = reinterpret_cast<float*>(smem + 0);
  long long* s3 = reinterpret_cast<long long*>(smem + 16384);
  long long* s4 = reinterpret_cast<long long*>(smem + 16512);
  const int v5 = threadIdx.x;
  if ((v5 == 0)) {
    #pragma unroll
    for (int v6 = 0; v6 < 2; ++v6) {
      mbarrier_init_1(reinterpret_cast<void*>(s4 + (v6)));
      mbarrier_init_8(reinterpret_cast<void*>(s3 + (v6)));
    }
  }
  __syncthreads();
  await_previous();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if ((v5 == 0)) {
      alignas(16) int r7[1];
      #pragma unroll 1
      for (int v8 = 0; v8 < 5; ++v8) {
        r7[0] = ((int)(((v8 / 2) + 1) % 2));
        mbarrier_wait(reinterpret_cast<void*>(s3 + ((v8 % 2))), reinterpret_cast<const unsigned*>(r7 + (0)));
        mbarrier_expect_8192(reinterpret_cast<void*>(s4 + ((v8 % 2))));
        const int n9 = (v8 % 2) * 2048 + 0 * 32 + 0;
        fetch_2d(s2 + ((n9 ^ ((n9 >> 5 & 7) << 2))), &m0, s4 + ((v8 % 2)), (int)((v1 * 32)), (int)((v8 * 64)));
      }
    }
  }
  else if (threadIdx.x < 384) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    alignas(16) int r10[1];
    #pragma unroll 1
    for (int v11 = 0; v11 < 5; ++v11) {
      r10[0] = ((int)((v11 / 2) % 2));
      mbarrier_wait(reinterpret_cast<void*>(s4 + ((v11 % 2))), reinterpret_cast<const unsigned*>(r10 + (0)));
      #pragma unroll
      for (int v12 = 0; v12 < 8; ++v12) {
        const int t13 = (v5 - 128);
        const int t14 = ((v12 * 8) + (t13 / 32));
        const int t15 = (t13 % 32);
        const int n16 = (v11 % 2) * 2048 + t14 * 32 + t15;
        const float l17 = s2[(n16 ^ ((n16 >> 5 & 7) << 2))];
        p1[((v11 * 64) + t14) * 64 + ((v1 * 32) + t15)] = l17;
      }
      warp_sync();
      if (((v5 % 32) == 0)) {
        mbarrier_arrive(reinterpret_cast<void*>(s3 + ((v11 % 2))));
      }
    }
  }
}
