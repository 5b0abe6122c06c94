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

extern "C" __global__ void __launch_bounds__(256) kernel_p0(const float* p0, float* p1) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const int v1 = blockIdx.x;
  const int v2 = blockIdx.y;
  float* s3 = reinterpret_cast<float*>(smem + 0);
  const int v4 = threadIdx.x / 32;
  const int v5 = threadIdx.x % 32;
  await_previous();
  #pragma unroll
  for (int v6 = 0; v6 < 4; ++v6) {
    if ((((v2 * 32) + ((v6 * 8) + v4)) < 100)) {
      if ((((v1 * 32) + v5) < 64)) {
        const float l7 = p0[((v2 * 32) + ((v6 * 8) + v4)) * 64 + ((v1 * 32) + v5)];
        const int n8 = ((v6 * 8) + v4) * 32 + v5;
        s3[(n8 ^ ((n8 >> 5 & 31) << 0))] = l7;
      }
    }
  }
  __syncthreads();
  #pragma unroll
  for (int v9 = 0; v9 < 4; ++v9) {
    if ((((v1 * 32) + ((v9 * 8) + v4)) < 64)) {
      if ((((v2 * 32) + v5) < 100)) {
        const int t10 = ((v9 * 8) + v4);
        const int n11 = v5 * 32 + t10;
        const float l12 = s3[(n11 ^ ((n11 >> 5 & 31) << 0))];
        p1[((v1 * 32) + t10) * 100 + ((v2 * 32) + v5)] = l12;
      }
    }
  }
}
